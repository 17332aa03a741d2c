"""GenerationResponse: sends a generation to its client, whole or as a stream, and ends it when the client is gone."""

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from nanoinfer.errors import EngineClosedError, StepFailedError
from nanoinfer.server.errors import ApiError, as_api_error, log_bug, shut_down, timed_out
from nanoinfer.server.formatter import ResponseFormatter, dumps
from nanoinfer.server.generation import Generation, GenerationRequest
from nanoinfer.server.request_context import RequestContext, context_of
from nanoinfer.server.service import Service

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # asks proxies to pass events on at once
]


async def respond(
    service: Service, http: Request, body: Any, request: GenerationRequest, formatter: Callable[..., ResponseFormatter]
) -> "GenerationResponse":
    """Queue what a client asks for with `body`, and answer it as `formatter`, a class, writes it. Errors as in
    `Service.generate`."""
    context, tokenizer = context_of(http.scope), service.core.builder.tokenizer
    if service.settings.show_prompts and tokenizer is not None:
        context.prompt = "\n".join(map(tokenizer.decode, request.prompts))
    made = formatter(service, body, request, context.request_id)
    return GenerationResponse(service, await service.generate(request), made, bool(body.stream))


class GenerationResponse(Response):
    """An answer in the making. A stream's status is sent with its first token, so that a request that gets none is answered
    with the status of what went wrong: what is raised before that becomes an answer in RequestMiddleware."""

    def __init__(self, service: Service, generation: Generation, formatter: ResponseFormatter, stream: bool):
        self._service, self._generation, self._formatter, self._stream = service, generation, formatter, stream
        self._context = RequestContext()  # until it is called
        self.background: BackgroundTask | None = None
        self.status_code = 200

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        generation = self._generation
        self._context = context_of(scope)
        self._context.generation = generation
        watcher = asyncio.create_task(self._watch(receive))
        try:
            if self._stream:
                await self._send_events(send)
            elif (answer := await self._whole()) is not None:
                await answer(scope, receive, send)
        except OSError:  # what some ASGI servers raise when the client is gone
            generation.close("disconnect")
        finally:
            watcher.cancel()
            self._service.end(generation)

    async def _watch(self, receive: Receive) -> None:
        """Abort the generation when its client is gone."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._generation.close("disconnect")

    async def _send_events(self, send: Send) -> None:
        generation, formatter, has_begun = self._generation, self._formatter, False
        error: ApiError | None = None
        try:
            while pieces := await generation.read():
                text = "".join([formatter.piece(index, piece) for index, piece in pieces])
                if text and not generation.client_left:
                    if not has_begun:
                        has_begun = True
                        await send({"type": "http.response.start", "status": 200, "headers": list(STREAM_HEADERS)})
                    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        except OSError:
            raise
        except Exception as raised:
            error = self._failure(raised)
        error = error or self._what_went_wrong()
        if generation.client_left:
            return
        if error is not None and not has_begun:
            raise error
        assert has_begun, "every choice that ends by itself has an event that says so"
        await send({"type": "http.response.body", "body": formatter.last_events(generation, error).encode()})

    async def _whole(self) -> Response | None:
        """The answer that is no stream. None if its client has left."""
        try:
            outputs = await self._generation.outputs()
            if self._generation.client_left:
                return None
            if (error := self._what_went_wrong()) is None:
                body = dumps(self._formatter.whole(self._generation, outputs)).encode()
                return Response(body, media_type="application/json")
        except Exception as raised:
            error = self._failure(raised)
        raise error

    def _failure(self, error: Exception) -> ApiError:
        """Note that the generation has failed, and return the answer to what was raised. What neither the engine nor its
        end raises is a bug, whatever its type: by now, nothing is the request's fault."""
        self._generation.failed = True
        if isinstance(error, StepFailedError | EngineClosedError):
            told = as_api_error(error, grammar_field=self._generation.request.grammar_field)
            self._context.error = told.renamed(self._context.names)
            return self._context.error
        log_bug(self._context.request_id, error, self._service.settings.show_prompts)
        return ApiError(500, f"internal error ({type(error).__name__})", code="internal_error")

    def _what_went_wrong(self) -> ApiError | None:
        """Why completions were ended early; None if none was."""
        ends = self._generation.ends
        if "timeout" in ends:
            return timed_out(self._service.settings.request_timeout_s or 0)
        if "abort" not in ends:
            return None
        if self._generation.closed_by == "shutdown" or self._service.drain.is_draining:
            return shut_down()
        return ApiError(500, "the request was aborted", code="aborted")
