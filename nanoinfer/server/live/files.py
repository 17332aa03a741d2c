"""The page's own files: its HTML, styles and scripts. Some of them are the trace player's, which draws the same things."""

from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from starlette.responses import Response

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
SHARED = ("drawings.css", "draw_basics.js", "draw_pools.js", "draw_timeline.js", "draw_pointing.js")  # with the player
STOREYS = ("storeys.css", "draw_storeys.js", "draw_strips.js")  # likewise
OWN = (
    *("page.html", "live.css", "chat.css", "icon.svg"),
    *(
        "live_state.js",
        "live_history.js",
        "live_draw.js",
        "live_controls.js",
        "session.js",
        "chat_request.js",
        "chat.js",
    ),
)


def page_file(name: str, framed_by: Sequence[str] = ()) -> Response | None:
    """The file of this name as a response; None if the page has none. `framed_by`: origins that may show it in a frame."""
    if name not in (PALETTE, *SHARED, *STOREYS, *OWN):
        return None
    suffix = name[name.rindex(".") :]
    policy = f"{POLICY}; frame-ancestors {' '.join(framed_by) or NOBODY}"
    return Response(_content(name), media_type=TYPES[suffix], headers={"content-security-policy": policy, **HEADERS})


@cache
def _content(name: str) -> str:
    if name == PALETTE:
        from nanoinfer.viz.page import WITH_STOREYS, palette_css
        from nanoinfer.viz.palette import ROLES

        return palette_css({**WITH_STOREYS, "other": ROLES["in_use"]})
    folder = files("nanoinfer.trace") if name in SHARED + STOREYS else files("nanoinfer.server.live").joinpath("static")
    return folder.joinpath(name).read_text(encoding="utf-8")
