"""Player: a trace as one self-contained HTML page that steps through the run and never loads anything from a network.

The page is written by hand. player.html says what is where, drawings.css and player.css how it looks. The scripts are, in
this order: draw_*.js (draw any state, also on the server's live page), player_state.js (rebuilds the state from the
events), and player.js (draws what only a trace has; slider, keys, playback). This file puts them together, with the trace
as JSON and the palette of nanoinfer.viz as CSS.
"""

import html
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from pathlib import Path

from nanoinfer.trace.data import TraceData
from nanoinfer.trace.describe import descriptions
from nanoinfer.trace.file import to_document

SCRIPTS = ("draw_basics.js", "draw_pools.js", "player_state.js", "player.js")
# The frame's height in a notebook: what the notebook's bars leave of the window, but enough to show the panels.
INLINE_HEIGHT = "clamp(520px, 100vh - 170px, 800px)"


class Player:
    """`trace` as a page. As the last expression of a notebook cell, it is shown in a frame. Below it, for viewers without
    scripts, is a PNG of the whole run with its numbers in a sentence. `start`: the step at which it opens."""

    def __init__(self, trace: TraceData, title: str | None = None, start: int = 1):
        self.trace, self.start = trace, start
        self.title = "What the engine did, step by step" if title is None else title

    def html(self) -> str:
        """The page."""
        from nanoinfer.viz.page import filled, palette_css, safe_json

        said = [asdict(text) for _, text in descriptions(self.trace)]
        parts = {
            "title": html.escape(self.title),
            "palette": palette_css(),
            "css": _part("drawings.css") + _part("player.css"),
            "data": safe_json({"trace": to_document(self.trace), "said": said, "start": self.start}),
            "script": "\n".join(map(_part, SCRIPTS)),
        }
        return filled(_part("player.html"), parts)

    def save(self, path: str | Path) -> None:
        """Write the page. ValueError when `path` does not end in .html."""
        from nanoinfer.viz.page import save_page

        save_page(self.html(), path)

    def _repr_html_(self) -> str:
        """The page in a separate frame, so that its styles and scripts don't interfere with those around it."""
        from nanoinfer.viz.page import frame

        return frame(self.html(), self.title, INLINE_HEIGHT)

    def _ipython_display_(self) -> None:
        from IPython.display import display

        from nanoinfer.trace.final import final_state

        display({"text/html": self._repr_html_(), "text/plain": f"{self.title} (player)"}, raw=True)
        if len(self.trace):
            display(final_state(self.trace))


@cache
def _part(name: str) -> str:
    return files("nanoinfer.trace").joinpath(name).read_text(encoding="utf-8")
