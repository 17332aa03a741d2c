"""Gate: the outermost layer. It gives each request its id and its line in the log, and no error leaves it unanswered."""

import asyncio
import re
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nanoinfer.server.access_log import log_request
from nanoinfer.server.answer import send_error
from nanoinfer.server.bugs import log_bug
from nanoinfer.server.errors import ApiError, as_api_error, bad_request, shut_down
from nanoinfer.server.notes import Notes
from nanoinfer.server.service import Service

ABSOLUTE = re.compile(rb"https?://([^/]*)(/.*)?", re.IGNORECASE | re.DOTALL)
REQUEST_ID = re.compile(r"[!-~]{1,128}")
VERSIONS = ("1.0", "1.1", "2", "3")  # of HTTP; the last two come from other ASGI servers
MOST_HEADER_BYTES = 16 * 2**10
ENGINE_REQUESTS = b"x-engine-requests"  # of whoever asks with it, the answer has the engine's numbers of the requests


class Gate:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp, service: Service):
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        notes = scope["nanoinfer"] = Notes()
        _make_relative(scope)

        async def noted_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                notes.status = message["status"]
                headers = [*message.get("headers", ()), (b"x-request-id", notes.request_id.encode())]
                is_coming = scope.get("state", {}).get("body_is_coming")  # see connections.py
                if is_coming is not None and is_coming():  # the next request would be taken for the rest of the body
                    headers.append((b"connection", b"close"))
                if notes.generation is not None and any(name == ENGINE_REQUESTS for name, _ in scope["headers"]):
                    numbers = (str(stream.request_id) for stream in notes.generation.streams)
                    headers.append((ENGINE_REQUESTS, ",".join(numbers).encode()))
                message["headers"] = headers
            await send(message)

        try:
            _check_head(scope)
            given = next((value for name, value in scope["headers"] if name == b"x-request-id"), None)
            if given is not None:
                text = given.decode("latin-1")
                if not REQUEST_ID.fullmatch(text):
                    raise bad_request("x-request-id: must be 1 to 128 visible ASCII characters", "x-request-id")
                notes.request_id = text
            await self._app(scope, receive, noted_send)
        except Exception as error:
            answer = as_api_error(error)
            if answer.status == 500:
                log_bug(notes.request_id, error, self._service.settings.show_prompts)
            notes.error = answer
            if notes.status:  # the server cuts the connection, so that nobody takes the answer for a whole one
                raise RuntimeError(f"request {notes.request_id} is cut off") from None
            await send_error(noted_send, answer)
        except asyncio.CancelledError:  # the server is ending, and waits no longer
            if not notes.status:
                await send_error(noted_send, shut_down())
            raise
        finally:
            self._service.metrics.responses[str(notes.status)] += 1
            log_request(scope, notes)


def _make_relative(scope: Scope) -> None:
    """`GET http://host/v1/models` is GET /v1/models with this Host (RFC 9112, 3.2.2). So ask clients that take it for a
    proxy."""
    raw_path = scope.get("raw_path") or b""
    if found := ABSOLUTE.fullmatch(raw_path):
        host, scope["raw_path"] = found[1], found[2] or b"/"
        scope["path"] = unquote(scope["raw_path"].decode("latin-1"))
        scope["headers"] = [*((name, value) for name, value in scope["headers"] if name != b"host"), (b"host", host)]


def _check_head(scope: Scope) -> None:
    """Bounds that HTTP servers need not have. h11's own is only for headers that arrive in pieces."""
    if (version := scope["http_version"]) not in VERSIONS:
        raise bad_request(f"HTTP/{version}: must be HTTP/1.0 or HTTP/1.1", code="invalid_http")
    names = {name for name, _ in scope["headers"]}
    if {b"content-length", b"transfer-encoding"} <= names:  # a proxy may see another end of the body than this server
        raise ApiError(
            400,
            "content-length and transfer-encoding: must not both be given",
            code="invalid_http",
            headers={"connection": "close"},
        )
    size = sum(len(name) + len(value) + len(b": \r\n") for name, value in scope["headers"])
    size += len(scope.get("raw_path") or b"") + len(scope["query_string"])
    if size > MOST_HEADER_BYTES:
        raise ApiError(
            431, f"the headers have {size} bytes: must not exceed {MOST_HEADER_BYTES}", code="headers_too_large"
        )


class Refusals:
    """Answers what the layers inside it refuse. It is inside the layer for CORS, so that pages can read the answer."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except ApiError as error:
            if scope["nanoinfer"].status:
                raise
            scope["nanoinfer"].error = error
            await send_error(send, error)
