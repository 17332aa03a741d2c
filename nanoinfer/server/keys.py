"""Keys: who may use the server."""

from collections.abc import Collection
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from nanoinfer.server.errors import ApiError

ENVIRONMENT = "NANOINFER_API_KEY"  # keys separated by commas
OPEN = ("/", "/health")  # paths that need no key
OPEN_FOLDERS = ("/static/",)


class Keys:
    """An ASGI application around another one. Without keys, everybody may use it."""

    def __init__(self, app: ASGIApp, keys: Collection[str]):
        self._app = app
        self._digests = [
            sha256(key.encode()).digest() for key in keys
        ]  # of equal length, so that none shows in the time

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._digests and not is_open(scope["path"]):
            self._check(dict(scope["headers"]).get(b"authorization"))
        await self._app(scope, receive, send)

    def _check(self, authorization: bytes | None) -> None:
        if authorization is None:
            raise _unauthorized("no API key: send the header 'Authorization: Bearer KEY'")
        scheme, _, key = authorization.partition(b" ")
        given = sha256(key.strip()).digest()
        matches = [compare_digest(given, digest) for digest in self._digests]  # all of them, whichever matches
        if scheme.lower() != b"bearer" or not any(matches):
            raise _unauthorized("wrong API key")


def is_open(path: str) -> bool:
    """True for what needs no key: whether the server is well, and the page's own files."""
    return path in OPEN or (path.startswith(OPEN_FOLDERS) and ".." not in path)


def read_keys(path: str | Path) -> list[str]:
    """The keys in a file, one per line. Empty lines and lines that begin with # are none. ValueError if there is none."""
    text = Path(path).expanduser().read_text(encoding="utf-8")
    keys = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if not keys:
        raise ValueError(f"--api-key-file {path}: has no keys; one per line")
    return keys


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})
