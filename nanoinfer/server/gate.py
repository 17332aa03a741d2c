"""Gate: what every request passes before its route: who may come in, how much it may send, and that it is answered."""

import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nanoinfer.server.answer import send_error
from nanoinfer.server.errors import ApiError, as_api_error, log_bug
from nanoinfer.server.keys import Hosts, Keys, is_open
from nanoinfer.server.notes import Notes, log_request
from nanoinfer.server.service import Service

REQUEST_ID = re.compile(r"[!-~]{1,128}")
ENGINE_REQUESTS = b"x-engine-requests"  # asks for the engine's numbers of the requests: the live page marks its own
OPEN_TO_THE_END = ("/metrics", "/live", "/block_events")  # they watch how the server ends


class Gate:
    """An ASGI application around another one. It gives each request its id and its line in the log."""

    def __init__(self, app: ASGIApp, service: Service):
        self._app, self._service = app, service
        settings = service.settings
        self._inside = 0  # requests that are being answered
        self._keys, self._hosts = Keys(settings.api_keys), Hosts(settings.allowed_hosts, settings.cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        notes, headers = Notes(), dict(scope["headers"])
        scope["nanoinfer"] = notes
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        if REQUEST_ID.fullmatch(given):
            notes.request_id = given

        async def noted_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                notes.status = message["status"]
                added = [(b"x-request-id", notes.request_id.encode())]
                if notes.generation is not None and ENGINE_REQUESTS in headers:
                    numbers = ",".join(str(stream.request_id) for stream in notes.generation.streams)
                    added.append((ENGINE_REQUESTS, numbers.encode()))
                message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        self._inside += 1
        try:
            self._hosts.check(headers, scope["method"])
            if self._inside > self._service.settings.max_requests and not is_open(scope["path"]):
                raise ApiError(503, "too many requests at a time", code="overloaded", headers={"retry-after": "1"})
            self._keys.check(scope["path"], headers)
            await self._let_in(scope, self._bounded(headers, receive), noted_send, notes)
        except Exception as error:
            answer = as_api_error(error)
            if answer.status == 500:
                log_bug(notes.request_id, error, self._service.settings.show_prompts)
            notes.error = answer
            if notes.status:  # the server cuts the connection, so that nobody takes the answer for a whole one
                raise RuntimeError(f"request {notes.request_id} is cut off") from None
            await send_error(noted_send, answer)
        finally:
            self._inside -= 1
            self._service.metrics.note_response(notes.status)
            log_request(scope, notes)

    async def _let_in(self, scope: Scope, receive: Receive, send: Send, notes: Notes) -> None:
        """Serve it, unless the server is ending, which waits for all but those who watch it."""
        if is_open(scope["path"]) or scope["path"].startswith(OPEN_TO_THE_END):
            await self._app(scope, receive, send)
            return
        with self._service.drain.inside(lambda: bool(notes.status) or notes.generation is not None):
            await self._app(scope, receive, send)

    def _bounded(self, headers: dict[bytes, bytes], receive: Receive) -> Receive:
        """`receive`, which raises ApiError when the body becomes too long."""
        most, size = self._service.settings.max_body_bytes, 0

        def check(size: int) -> None:
            if size > most:
                message = f"the body has {size} bytes or more: must not exceed {most}"
                raise ApiError(413, message, code="body_too_large", headers={"connection": "close"})

        async def bounded() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            check(size)
            return message

        length = headers.get(b"content-length", b"")
        check(int(length) if length.isdigit() else 0)
        return bounded
