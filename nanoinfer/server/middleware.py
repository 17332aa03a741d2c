"""RequestMiddleware: what every request passes before its route: who may come in, how much it may send, and that it is
answered, also when the server ends.

By DNS rebinding, a page from attacker.example lets that name lead to 127.0.0.1, so that the browser takes this server for
the page's own. Then the Host header has that name: it must be an IP address, a name without a dot (no page can come from
one), or one of `allowed_hosts`. And a page may send a form, or a plain POST, to any address. Then the Origin header differs
from the Host header: it must be one of `cors_origins`.
"""

import json
import re
from collections.abc import Collection
from hashlib import sha256
from hmac import compare_digest
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nanoinfer.server.errors import MESSAGES, ApiError, as_api_error, log_bug
from nanoinfer.server.request_context import RequestContext, log_request
from nanoinfer.server.service import Service

REQUEST_ID = re.compile(r"[!-~]{1,128}")
ENGINE_REQUESTS = "x-engine-requests"  # asks for the engine's numbers of the requests: the live page marks its own
OPEN = ("/", "/health")  # paths that need no key
OPEN_FOLDER = "/static/"
OPEN_TO_THE_END = ("/metrics", "/live", "/block_events")  # they watch how the server ends


class RequestMiddleware:
    """An ASGI application around another one. It gives each request its id and its line in the log, and is the one place
    where what is raised becomes an answer."""

    def __init__(self, app: ASGIApp, service: Service):
        self._app, self._service = app, service
        self._inside = 0  # requests that are being answered
        # Of equal length, so that none shows in the time that a comparison takes.
        self._digests = [sha256(key.encode()).digest() for key in service.settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context, headers, settings = RequestContext(), Headers(scope=scope), self._service.settings
        scope["nanoinfer"] = context
        if REQUEST_ID.fullmatch(given := headers.get("x-request-id", "")):
            context.request_id = given

        async def noted_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                context.status = message["status"]
                added = [(b"x-request-id", context.request_id.encode())]
                if context.generation is not None and ENGINE_REQUESTS in headers:
                    numbers = ",".join(str(stream.request_id) for stream in context.generation.streams)
                    added.append((ENGINE_REQUESTS.encode(), numbers.encode()))
                message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        self._inside += 1
        try:
            check_host(headers, scope["method"], settings.allowed_hosts, settings.cors_origins)
            if self._inside > settings.max_requests and not is_open(scope["path"]):
                raise ApiError(503, "too many requests at a time", code="overloaded")
            if not is_open(scope["path"]):
                check_key(headers, self._digests)
            receive = bounded(receive, headers, settings.max_body_bytes)
            if is_open(scope["path"]) or scope["path"].startswith(OPEN_TO_THE_END):
                await self._app(scope, receive, noted_send)
            else:
                with self._service.drain.inside(context):
                    await self._app(scope, receive, noted_send)
        except Exception as error:
            answer = context.error = as_api_error(error).renamed(context.names)
            if answer.status == 500 and not isinstance(error, ApiError):
                log_bug(context.request_id, error, settings.show_prompts)
            if context.status:  # the server cuts the connection, so that nobody takes the answer for a whole one
                raise RuntimeError(f"request {context.request_id} is cut off") from None
            is_anthropic = scope["path"].startswith(MESSAGES)
            content = answer.anthropic_content(context.request_id) if is_anthropic else answer.content
            # json.dumps escapes what is not ASCII, so text that is not UTF-8 can be quoted in it.
            response = Response(json.dumps(content), answer.status, answer.headers, "application/json")
            await response(scope, receive, noted_send)
        finally:
            self._inside -= 1
            self._service.metrics.note_response(context.status)
            log_request(scope, context)


def bounded(receive: Receive, headers: Headers, most: int) -> Receive:
    """`receive`, which raises ApiError when the body becomes too long, or will be so by its header."""
    size, length = 0, headers.get("content-length", "")

    def check(size: int) -> None:
        if size > most:
            message = f"the body has {size} bytes or more: must not exceed {most}"
            raise ApiError(413, message, code="body_too_large", headers={"connection": "close"})

    async def counted() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        check(size)
        return message

    check(int(length) if length.isdigit() else 0)
    return counted


def check_key(headers: Headers, digests: Collection[bytes]) -> None:
    """ApiError (401) without a right key, if there are any. Anthropic's clients send it as x-api-key."""
    scheme, _, key = headers.get("authorization", f"bearer {headers.get('x-api-key', '')}").partition(" ")
    given = sha256(key.strip().encode("latin-1")).digest()
    matches = [compare_digest(given, digest) for digest in digests]  # all of them, whichever matches
    if digests and not (scheme.lower() == "bearer" and any(matches)):
        message = "no API key, or a wrong one: send the header 'Authorization: Bearer KEY'"
        raise ApiError(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})


def is_open(path: str) -> bool:
    """True for what needs no key: whether the server is well, and the page's own files."""
    return path in OPEN or (path.startswith(OPEN_FOLDER) and ".." not in path)


def check_host(headers: Headers, method: str, allowed_hosts: Collection[str], cors_origins: Collection[str]) -> None:
    """ApiError (403) for a Host or Origin header of somebody else."""
    host = headers.get("host", "").lower()
    if not _may_be(host, {name.lower().removesuffix(".") for name in allowed_hosts}):
        message = f"host {host[:100]!r}: must be an IP address, a name without a dot, or an --allowed-host"
        raise ApiError(403, message, "host", "host_not_allowed")
    origin = headers.get("origin", "")
    if not origin or method in ("GET", "HEAD", "OPTIONS") or "*" in cors_origins or origin in cors_origins:
        return
    if origin.lower().partition("://")[2] != host:
        message = f"origin {origin[:100]!r}: must be this server's or allowed (--cors-origin)"
        raise ApiError(403, message, "origin", "origin_not_allowed")


def _may_be(host: str, allowed: Collection[str]) -> bool:
    if not host or "*" in allowed:  # only HTTP/1.0, which no browser speaks, has no Host header
        return True
    try:
        name = (urlsplit(f"//{host}").hostname or host).removesuffix(".")  # "localhost." is localhost
        if name in allowed or "." not in name or name.endswith(".localhost"):
            return True
        ip_address(name)
    except ValueError:
        return False
    return True
