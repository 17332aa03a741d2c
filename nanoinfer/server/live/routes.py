"""The routes of the live page."""

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from nanoinfer.server.errors import ApiError
from nanoinfer.server.live.event_stream import EventStream
from nanoinfer.server.live.excerpts import Texts
from nanoinfer.server.live.feed import Feed
from nanoinfer.server.live.files import page_file
from nanoinfer.server.live.limits import Limits
from nanoinfer.server.live.node_text import node_text
from nanoinfer.server.live.tape import Tape, document
from nanoinfer.server.live.view import View
from nanoinfer.trace.data import engine_fields


def routes(service: Any, limits: Limits | None = None) -> list[BaseRoute]:
    """`/` (the page), `/static/{file}` (its files), `/live/events` (the feed), `/live/trace` (the last minutes as a file)
    and `/live/node/{number}` (a node's text).

    `service`: a Service. The page and its files hold no secrets and may be open to everyone; the others show what the
    engine does, and the application must ask for the key.
    """
    limits = limits or Limits()
    core, shows_prompts = service.core, service.settings.show_prompts
    view = View(core, limits, shows_prompts)
    texts = Texts(core.builder.tokenizer, limits)
    tape = Tape(core, limits, view.notes.after_pass)
    feed = Feed(lambda: service.engine, view, tape, texts, _about(service), limits, service.is_ending.is_set)
    one_at_a_time = asyncio.Lock()  # making a trace's file takes a while

    async def page(request: Request) -> Response:
        return _file("page.html", service.settings.framed_by)

    async def static(request: Request) -> Response:
        return _file(request.path_params["file"], service.settings.framed_by)

    async def events(request: Request) -> Any:
        return EventStream(feed, limits)

    async def trace(request: Request) -> Response:
        async with one_at_a_time:
            pieces = await service.engine.visit(lambda engine: tape.pieces())
            if pieces is None:
                raise ApiError(409, "nothing is recorded: the engine is recorded while a page watches it", "trace")
            content = await asyncio.to_thread(document, pieces, shows_prompts)
        headers = {"content-disposition": 'attachment; filename="nanoinfer-trace.json"', "cache-control": "no-store"}
        return Response(content, media_type="application/json", headers=headers)

    async def node(request: Request) -> Response:
        if not shows_prompts:
            raise ApiError(403, "texts of the tree may be prompts of others: the server needs --show-prompts", "number")
        number = request.path_params["number"]
        found = await node_text(service.engine, view, texts, number, limits.text_tokens)
        if found is None:
            raise ApiError(404, f"number={number}: no such node is drawn now; it may have been evicted", "number")
        return JSONResponse(found)

    return [
        Route("/", page),
        Route("/static/{file}", static),
        Route("/live/events", events),
        Route("/live/trace", trace),
        Route("/live/node/{number:int}", node),
    ]


def _file(name: str, framed_by: Sequence[str]) -> Response:
    response = page_file(name, framed_by)
    if response is None:
        raise ApiError(404, f"file={name!r}: the page has no such file", "file")
    return response


def _about(service: Any) -> dict[str, Any]:
    """What the page must know and what does not change."""
    core = service.core
    tokenizer = core.builder.tokenizer
    return {
        "engine": engine_fields(core),
        "show_prompts": service.settings.show_prompts,
        "has_tokenizer": tokenizer is not None,
        "has_chat_template": bool(getattr(getattr(tokenizer, "hf_tokenizer", None), "chat_template", None)),
    }
