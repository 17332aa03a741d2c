"""Bodies: how much clients may send, each and all together, before anything is parsed."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nanoinfer.server.errors import ApiError
from nanoinfer.server.settings import ServerSettings

WITHOUT_BODY = ("GET", "HEAD", "OPTIONS")


class Bodies:
    """An ASGI application around another one, which gets each body whole. A body that is cut off never gets there."""

    def __init__(self, app: ASGIApp, settings: ServerSettings):
        self._app, self._settings = app, settings
        self._held = 0  # bytes of bodies that are not complete yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in WITHOUT_BODY:
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if (encoding := headers.get(b"content-encoding", b"identity").lower()) != b"identity":
            name = encoding.decode("latin-1")[:100]
            raise ApiError(415, f"content-encoding {name!r}: must be absent or identity", "content-encoding")
        length = headers.get(b"content-length", b"")
        if length.isdigit():
            self._check(int(length))
        body = await self._read(receive)
        if body is None:
            return
        message: Message | None = {"type": "http.request", "body": body, "more_body": False}
        del body

        async def replay() -> Message:
            nonlocal message
            given, message = message, None
            return await receive() if given is None else given

        await self._app(scope, replay, send)

    async def _read(self, receive: Receive) -> bytes | None:
        """The whole body; None when the client goes before its end."""
        parts: list[bytes] = []
        size = 0
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                part = message.get("body", b"")
                size += len(part)
                self._held += len(part)
                self._check(size)
                if self._held > self._settings.max_bodies_bytes:
                    raise ApiError(503, "too many bodies are being received: send it again later", code="overloaded")
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
        finally:
            self._held -= size

    def _check(self, size: int) -> None:
        most = self._settings.max_body_bytes
        if size > most:
            raise ApiError(413, f"the body has {size} bytes or more: must not exceed {most}", code="body_too_large")
