"""Keys and Hosts: who may use the server.

By DNS rebinding, a page from attacker.example lets that name lead to 127.0.0.1, so that the browser takes this server for
the page's own. Then the Host header has that name: it must be an IP address, a name without a dot (no page can come from
one), or one of `allowed_hosts`. And a page may send a form, or a plain POST, to any address. Then the Origin header differs
from the Host header: it must be one of `cors_origins`.
"""

from collections.abc import Collection, Mapping
from hashlib import sha256
from hmac import compare_digest
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from nanoinfer.server.errors import ApiError

ENVIRONMENT = "NANOINFER_API_KEY"  # keys separated by commas
OPEN = ("/", "/health")  # paths that need no key
OPEN_FOLDERS = ("/static/",)


class Keys:
    """Without keys, everybody may use it."""

    def __init__(self, keys: Collection[str]):
        self._digests = [
            sha256(key.encode()).digest() for key in keys
        ]  # of equal length, so that none shows in the time

    def check(self, path: str, headers: Mapping[bytes, bytes]) -> None:
        """ApiError (401) unless the path is open or there is a right key."""
        if self._digests and not is_open(path):
            self._check(headers.get(b"authorization"))

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


class Hosts:
    """Under which names the server may be asked, and from pages of which origins."""

    def __init__(self, allowed_hosts: Collection[str], cors_origins: Collection[str]):
        self._allowed, self._origins = {name.lower().removesuffix(".") for name in allowed_hosts}, {*cors_origins}

    def check(self, headers: Mapping[bytes, bytes], method: str) -> None:
        """ApiError (403) for a Host or Origin header of somebody else."""
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if not self._may_be(host):
            message = f"host {host[:100]!r}: must be an IP address, a name without a dot, or an --allowed-host"
            raise ApiError(403, message, "host", "host_not_allowed")
        origin = headers.get(b"origin", b"").decode("latin-1")
        if not origin or method in ("GET", "HEAD", "OPTIONS") or self._origins & {"*", origin}:
            return
        if origin.lower().partition("://")[2] != host:
            message = f"origin {origin[:100]!r}: must be this server's or allowed (--cors-origin)"
            raise ApiError(403, message, "origin", "origin_not_allowed")

    def _may_be(self, host: str) -> bool:
        if not host or "*" in self._allowed:  # only HTTP/1.0, which no browser speaks, has no Host header
            return True
        try:
            name = (urlsplit(f"//{host}").hostname or host).removesuffix(".")  # "localhost." is localhost
            if name in self._allowed or "." not in name or name.endswith(".localhost"):
                return True
            ip_address(name)
        except ValueError:
            return False
        return True
