"""The routes of the live page, and its own files: some of them are the trace player's, which draws the same things."""

import secrets
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from nanoinfer.server.block_events import endless
from nanoinfer.server.errors import ApiError
from nanoinfer.server.live.feed import Feed
from nanoinfer.server.service import Service
from nanoinfer.viz.trace.player import DRAWINGS, part

# Nothing is loaded from elsewhere, and nothing that gets into the page can run, be it text of a model or of other clients.
POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
)
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PALETTE = "palette.css"
SHARED = ("drawings.css", *DRAWINGS)  # with the player
LIBRARY = "markdown-it.min.js"  # of others, with its licences beside it
SCRIPTS = (*DRAWINGS, "session.js", "live.js", LIBRARY, "markdown.js", "chats.js", "chat.js")  # in this order
FILES = (PALETTE, "drawings.css", *SCRIPTS, "page.html", "live.css", "icon.svg")


def routes(service: Service) -> list[BaseRoute]:
    """`/` (the page), `/static/{file}` (its files) and `/live/events` (the feed).

    The page and its files hold no secrets and may be open to everyone; the feed shows what the engine does, and the
    application must ask for the key.
    """
    tokenizer = service.core.builder.tokenizer
    about = {
        "server": secrets.token_hex(8),  # tells a page whether it is the same one after a loss
        "show_prompts": service.settings.show_prompts,
        "needs_key": bool(service.settings.api_keys),
        "has_chat_template": bool(getattr(getattr(tokenizer, "hf_tokenizer", None), "chat_template", None)),
    }
    feed = Feed(service, about)
    framed_by = " ".join(service.settings.framed_by) or "'none'"
    headers = {"content-security-policy": f"{POLICY}; frame-ancestors {framed_by}", **HEADERS}

    async def file(request: Request) -> Response:
        name = request.path_params.get("file", "page.html")
        if name not in FILES:
            raise ApiError(404, f"file={name!r}: the page has no such file", "file")
        return Response(_content(name), media_type=TYPES[name[name.rindex(".") :]], headers=headers)

    async def events(request: Request) -> Response:
        return endless(service, feed.stream())

    return [Route("/", file), Route("/static/{file}", file), Route("/live/events", events)]


@cache
def _content(name: str) -> str:
    from nanoinfer.viz.page import filled, palette_css

    if name == PALETTE:
        return palette_css()
    if name in SHARED:
        return part(name)
    text = files("nanoinfer.server.live").joinpath("static", name).read_text(encoding="utf-8")
    if name != "page.html":
        return text
    scripts = "\n".join(f'<script defer src="static/{script}"></script>' for script in SCRIPTS)
    return filled(text, {"scripts": scripts, "timeline": part("timeline.html"), "panels": part("panels.html")})
