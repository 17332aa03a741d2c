"""Player: a trace as one self-contained HTML page that steps through the run; nothing is fetched, ever.

The page is written by hand: player.html (what is where), player.css (how it looks), and in the order in which they are read
player_state.js (rebuilds the state from the events), player_draw.js, player_pools.js and player_timeline.js (draw it),
player_controls.js (slider, keys, playing). Here they are put together, with the trace as JSON and the palette of
nanoinfer.viz as CSS.
"""

import html
import json
import re
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from nanoinfer.trace.data import TraceData
from nanoinfer.trace.describe import descriptions
from nanoinfer.trace.file import to_document

if TYPE_CHECKING:
    from nanoinfer.viz.palette import Style

SCRIPTS = ("player_state.js", "player_draw.js", "player_pools.js", "player_timeline.js", "player_controls.js")
# Of the frame in a notebook: what the notebook's bars leave of the window, but not so little that the panels are hidden.
INLINE_HEIGHT = "clamp(520px, 100vh - 170px, 800px)"


class Player:
    """`trace` as a page. As the last expression of a notebook cell it is shown in a frame, and beneath it, for viewers that
    leave scripts out, a PNG of the whole run with its numbers in a sentence. `start`: the step it opens at."""

    def __init__(self, trace: TraceData, title: str | None = None, start: int = 1):
        self.trace, self.start = trace, start
        self.title = "What the engine did, step by step" if title is None else title

    def html(self) -> str:
        """The page."""
        document = to_document(self.trace)
        said = [asdict(text) for _, text in descriptions(self.trace)]
        data = {"trace": document, "said": said, "start": self.start}
        parts = {
            "title": html.escape(self.title),
            "palette": palette_css(),
            "css": _part("player.css"),
            "data": safe_json(data),
            "script": "\n".join(map(_part, SCRIPTS)),
        }
        return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _part("player.html"))

    def save(self, path: str | Path) -> None:
        """Write the page. ValueError when `path` does not end in .html."""
        if Path(path).suffix.lower() not in (".html", ".htm"):
            raise ValueError(f"path={str(path)!r}: must end in .html")
        Path(path).write_text(self.html(), encoding="utf-8")

    def _repr_html_(self) -> str:
        """The page in a separate frame, so that neither its styles nor its scripts meet those around it."""
        style = f"box-sizing:border-box;width:100%;height:{INLINE_HEIGHT};border:1px solid #9a9a9a;border-radius:6px"
        return (
            f'<iframe srcdoc="{html.escape(self.html())}" sandbox="allow-scripts" title="{html.escape(self.title)}" '
            f'style="{style}"></iframe>'
        )

    def _ipython_display_(self) -> None:
        from IPython.display import display

        from nanoinfer.trace.final import final_state

        display({"text/html": self._repr_html_(), "text/plain": f"{self.title} (player)"}, raw=True)
        if len(self.trace):
            display(final_state(self.trace))


def safe_json(value: object) -> str:
    """JSON that may stand inside a script element: no text in it can end that or be taken for HTML."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def palette_css() -> str:
    """The palette of the pictures as CSS classes: `o-...` for owners of slots, `p-...` for what a request does."""
    from nanoinfer.viz.palette import PHASE_STYLES, REQUESTS, ROLES

    looks = {"o-free": ROLES["free"], "o-tree": ROLES["tree"], "o-locked": ROLES["tree_locked"]}
    looks |= {f"o-r{i}": style for i, style in enumerate(REQUESTS)}
    looks |= {f"p-{phase}": style for phase, style in PHASE_STYLES.items()}
    rules = [f".{name} {{ {_css(style)} }}" for name, style in looks.items()]
    roles = {"new": "new", "highlight": "highlight", "tree": "tree", "locked": "tree_locked"}
    variables = "; ".join(f"--{name}: {ROLES[role].face}" for name, role in roles.items())
    return "\n".join([f":root {{ {variables} }}", *rules])


def _css(style: "Style") -> str:
    line = f"{style.mark} 0 1px, transparent 1px 4px"
    hatches = {
        "//": f"repeating-linear-gradient(-45deg, {line})",
        "\\\\": f"repeating-linear-gradient(45deg, {line})",
        "..": f"radial-gradient({style.mark} 22%, transparent 26%) 0 0 / 5px 5px",
        "xx": f"repeating-linear-gradient(-45deg, {line}), repeating-linear-gradient(45deg, {line})",
    }
    hatch = hatches.get(style.hatch[:2], "")
    return f"background: {hatch + ', ' if hatch else ''}{style.face}; color: {style.text}"


@cache
def _part(name: str) -> str:
    return files("nanoinfer.trace").joinpath(name).read_text(encoding="utf-8")
