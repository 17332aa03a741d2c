"""InteractiveFigure: one self-contained page that fetches nothing, with controls that choose among recorded frames."""

import base64
import html
import itertools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from nanoinfer.viz.page import filled, frame, palette_css, safe_json, save_page
from nanoinfer.viz.palette import LINES
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Sheet
from notebooks.course.explore.panels.base import LOOKS, Panel

SHARED_LENGTH = 40  # of JSON: what is shorter is repeated rather than named
STILL_WIDTH = 640  # CSS pixels of the still beneath the frame


class Control:
    """What the student moves. `values`: what can be chosen (at least two JSON values); `labels`: their texts (without them
    the values as they are); `start`: the index chosen at first. Numbers make a slider, anything else a list; `slider` says
    so.
    """

    def __init__(
        self,
        name: str,
        label: str,
        values: Sequence[Any],
        labels: Sequence[str] | None = None,
        start: int = 0,
        slider: bool | None = None,
    ):
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
        self.name, self.label, self.values, self.start = name, label, list(values), start
        self.labels = list(labels or texts)
        self.slider = numbers if slider is None else slider

    def data(self) -> dict[str, Any]:
        """What the page gets."""
        kind = "slider" if self.slider else "list"
        return {"name": self.name, "label": self.label, "labels": self.labels, "start": self.start, "kind": kind}


@dataclass(frozen=True)
class Frame:
    """What is shown for one choice of all controls: panels, and a sentence that says what to see in them."""

    panels: Sequence[Panel]
    sentence: str


class InteractiveFigure:
    """A question (`title`), what to look at (`intro`), controls, and `show`, which makes the Frame of the values that they
    choose. `frames`: that of every combination, by the indices of its values.

    `still`: the combination (of indices) whose frame is drawn for viewers that leave scripts out; without it, the frame at
    the start. `height`: of the frame in a notebook, in CSS pixels; nothing need be scrolled in it if that is enough for
    every combination at a width of 600. `runs`: how many runs were recorded, where that is not one per combination.
    `source`: where the numbers come from, if not from such runs.
    """

    def __init__(
        self,
        title: str,
        intro: str,
        controls: Sequence[Control],
        show: Callable[..., Frame],
        still: tuple[int, ...] | None = None,
        height: int = 640,
        runs: int | None = None,
        source: str = "",
    ):
        self.title, self.intro, self.controls, self.height = title, intro, list(controls), height
        combinations = itertools.product(*(range(len(control.values)) for control in controls))
        self.frames = {
            indices: show(*(control.values[i] for control, i in zip(controls, indices, strict=True)))
            for indices in combinations
        }
        self._still = still
        count = len(self.frames) if runs is None else runs
        where = f"for each of {count} settings" if runs is None else f"in {count} run{'s' * (count != 1)}"
        self.source = source or f"Recorded with the real engine, {where}."

    @property
    def start(self) -> Frame:
        """The frame that is shown first."""
        return self.frames[tuple(control.start for control in self.controls)]

    def data(self) -> dict[str, Any]:
        """What the page gets: frames in the order of the controls, the last one fastest; what repeats is there once."""
        frames = [
            {"sentence": frame.sentence, "panels": [panel.data() for panel in frame.panels]}
            for frame in self.frames.values()
        ]
        packed, parts = shared(frames)
        return {"controls": [control.data() for control in self.controls], "frames": packed, "parts": parts}

    def html(self) -> str:
        """The page."""
        colours = "; ".join(f"--line-{i}: {colour}" for i, colour in enumerate(LINES))
        parts = {
            "title": html.escape(self.title),
            "intro": html.escape(self.intro),
            "source": html.escape(self.source),
            "palette": f"{palette_css(LOOKS)}\n:root {{ {colours} }}",
            "css": part("page.css"),
            "data": safe_json(self.data()),
            "script": part("panels.js") + part("page.js"),
        }
        return filled(part("page.html"), parts)

    def still(self) -> Picture:
        """A picture for viewers that leave scripts out."""
        indices = self._still or tuple(control.start for control in self.controls)
        frame, sheet = self.frames[indices], Sheet(self.title)
        chosen = ", ".join(f"{each.label}: {each.labels[i]}" for each, i in zip(self.controls, indices, strict=True))
        sheet.caption(f"{chosen}. {frame.sentence}")
        for panel in frame.panels:
            sheet.y += 6
            sheet.heading(panel.title)
            panel.draw(sheet)
        return sheet.picture(f"{self.title} {chosen}. {frame.sentence}")

    def save(self, path: str | Path) -> None:
        """Write the page. ValueError when `path` does not end in .html."""
        save_page(self.html(), path)

    def _repr_html_(self) -> str:
        """The page in a frame. Where frames and styles are shown, the picture beneath it is not needed, and hidden."""
        return f"<style>{HIDE_STILL}</style>" + frame(self.html(), self.title, f"{self.height}px", "interactive")

    def _ipython_display_(self) -> None:
        from IPython.display import display

        still = self.still()
        display({"text/html": self._repr_html_(), "text/plain": f"{self.title} (a page with sliders)"}, raw=True)
        picture = {"image/png": base64.b64encode(still.png()).decode(), "text/plain": still.alt}
        display(picture, raw=True, metadata={"image/png": {"width": STILL_WIDTH}})


# The output after the one with the frame: in JupyterLab and in pages that nbconvert writes, and in nbviewer.
HIDE_STILL = " ".join(
    f"{output}:has(iframe.interactive) + {output}:has(img) {{ display: none }}"
    for output in (".jp-OutputArea-child", ".output_area")
)


def shared(value: Any) -> tuple[Any, list[Any]]:
    """`value` (dicts, lists, texts, numbers) with what is there more than once replaced by {"$": i}, and the list of these
    parts, which may name one another."""
    texts: Counter[str] = Counter()

    def count(part: Any) -> None:
        if not isinstance(part, dict | list | tuple):
            return
        text = json.dumps(part)
        texts[text] += 1
        if texts[text] == 1:
            for inner in part.values() if isinstance(part, dict) else part:
                count(inner)

    count(value)
    places: dict[str, int] = {}
    parts: list[Any] = []

    def pack(part: Any) -> Any:
        if not isinstance(part, dict | list | tuple):
            return part
        text = json.dumps(part)
        if text in places:
            return {"$": places[text]}
        packed = {k: pack(v) for k, v in part.items()} if isinstance(part, dict) else [pack(v) for v in part]
        if texts[text] < 2 or len(text) < SHARED_LENGTH:
            return packed
        places[text] = len(parts)
        parts.append(packed)
        return {"$": places[text]}

    return pack(value), parts


@cache
def part(name: str) -> str:
    return files("notebooks.course.explore").joinpath(name).read_text(encoding="utf-8")
