"""Door: refuses newcomers while the server is ending, and counts those who are inside."""

from starlette.types import ASGIApp, Receive, Scope, Send

from nanoinfer.server.drain import Drain
from nanoinfer.server.keys import is_open
from nanoinfer.server.notes import notes_of

OPEN_TO_THE_END = ("/metrics", "/live", "/block_events")  # they watch how the server ends


class Door:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp, drain: Drain):
        self._app, self._drain = app, drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_open(scope["path"]) or scope["path"].startswith(OPEN_TO_THE_END):
            await self._app(scope, receive, send)
            return
        notes = notes_of(scope)
        with self._drain.inside(lambda: bool(notes.status) or notes.generation is not None):
            await self._app(scope, receive, send)
