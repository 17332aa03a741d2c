"""Player: a trace as one self-contained HTML page that steps through the run and never loads anything from a network.

player.html, timeline.html and panels.html say what is where, drawings.css how it looks. The scripts are, in this order:
elements.js (what drawings are made with), state.js (rebuilds the state from the events), draw.js and draw_pools.js (draw a
state), and player.js (slider, keys, playback). All but player.html and player.js are the server's live page's, too.
This file puts them together, with the trace as JSON and the palette of nanoinfer.viz as CSS.
"""

import html
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from pathlib import Path

from nanoinfer.viz.trace.data import TraceData
from nanoinfer.viz.trace.describe import descriptions

DRAWINGS = ("elements.js", "state.js", "draw.js", "draw_pools.js")  # scripts that the server's live page runs as well
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
            "timeline": part("timeline.html"),
            "panels": part("panels.html"),
            "css": part("drawings.css"),
            "data": safe_json({"trace": self.trace.to_document(), "said": said, "start": self.start}),
            "script": "\n".join(map(part, (*DRAWINGS, "player.js"))),
        }
        return filled(part("player.html"), parts)

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

        from nanoinfer.viz.trace.timeline import timeline

        display({"text/html": self._repr_html_(), "text/plain": f"{self.title} (player)"}, raw=True)
        if len(self.trace):
            display(timeline(self.trace, occupancy=True))


@cache
def part(name: str) -> str:
    """A file of the page."""
    return files("nanoinfer.viz.trace").joinpath(name).read_text(encoding="utf-8")
