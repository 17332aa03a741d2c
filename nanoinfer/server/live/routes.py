"""The routes of the live page, and its own files: some of them are the trace player's, which draws the same things."""

import asyncio
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from nanoinfer.engine.engine import Engine
from nanoinfer.frontends.async_engine import AsyncEngine
from nanoinfer.server.errors import ApiError
from nanoinfer.server.live.feed import EventStream, Feed
from nanoinfer.server.live.limits import Limits
from nanoinfer.server.live.tape import Tape, document
from nanoinfer.server.live.texts import Texts
from nanoinfer.server.live.view import View
from nanoinfer.trace.data import engine_fields

# Nothing is loaded from elsewhere, and nothing that gets into the page can run, be it text of a model or of other clients.
POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
)
NOBODY = "'none'"
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PALETTE = "palette.css"
SHARED = ("drawings.css", "draw_basics.js", "draw_pools.js")  # with the player
SCRIPTS = ("session.js", "live_state.js", "live_draw.js", "live_controls.js", "chat.js")
FILES = (PALETTE, *SHARED, "page.html", "live.css", "icon.svg", *SCRIPTS)


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
            found = await service.engine.visit(lambda engine: tape.trace())
            if found is None:
                raise ApiError(409, "nothing is recorded: the engine is recorded while a page watches it", "trace")
            content = await asyncio.to_thread(document, found, shows_prompts)
        headers = {"content-disposition": 'attachment; filename="nanoinfer-trace.json"', "cache-control": "no-store"}
        return Response(content, media_type="application/json", headers=headers)

    async def node(request: Request) -> Response:
        if not shows_prompts:
            raise ApiError(403, "texts of the tree may be prompts of others: the server needs --show-prompts", "number")
        number = request.path_params["number"]
        found = await _node_text(service.engine, view, texts, number, limits.text_tokens)
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
    """A file of the page. `framed_by`: origins that may show it in a frame."""
    if name not in FILES:
        raise ApiError(404, f"file={name!r}: the page has no such file", "file")
    suffix = name[name.rindex(".") :]
    policy = f"{POLICY}; frame-ancestors {' '.join(framed_by) or NOBODY}"
    return Response(_content(name), media_type=TYPES[suffix], headers={"content-security-policy": policy, **HEADERS})


@cache
def _content(name: str) -> str:
    if name == PALETTE:
        from nanoinfer.viz.page import OWNERS, palette_css
        from nanoinfer.viz.palette import FETCHED, ROLES

        return palette_css(OWNERS | FETCHED | {"other": ROLES["in_use"]})
    folder = files("nanoinfer.trace") if name in SHARED else files("nanoinfer.server.live").joinpath("static")
    return folder.joinpath(name).read_text(encoding="utf-8")


async def _node_text(
    engine: AsyncEngine, view: View, texts: Texts, number: int, most_tokens: int
) -> dict[str, Any] | None:
    """The text of the node that the last frame calls `number`: its first `most_tokens` tokens (`left_out`: how many more it
    has), and `before` it the last `most_tokens` of the path to it. None if there is no such node any more."""

    def tokens_of(_: Engine) -> tuple[tuple[int, ...], tuple[int, ...], int] | None:
        node = view.tree.find(number)
        if node is None:
            return None
        before: list[int] = []
        above = node.parent
        while above is not None and len(before) < most_tokens:
            before[:0] = above.key[-(most_tokens - len(before)) :].tolist() if len(above) else []
            above = above.parent
        return tuple(node.key[:most_tokens].tolist()), tuple(before), len(node)

    found = await engine.visit(tokens_of)
    if found is None:
        return None
    own, before, length = found
    texts_of = await asyncio.gather(*(asyncio.to_thread(texts.decode, tokens) for tokens in (before, own)))
    return {
        "number": number,
        "tokens": length,
        "left_out": length - len(own),
        "before": texts_of[0],
        "text": texts_of[1],
    }


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
