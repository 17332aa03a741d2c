"""Sheet: paper to draw on from top to bottom, in CSS pixels; it grows as long as it must and becomes a Picture."""

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.colors import to_rgba
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch, Polygon, Rectangle
from matplotlib.path import Path
from matplotlib.text import Text

from nanoinfer.viz.lettering import BODY, CAPTION, SMALL, TINY, drawable, font, shortened, text_width, wrapped
from nanoinfer.viz.palette import INK, MUTED, PAPER, Style
from nanoinfer.viz.picture import WIDTH, Picture, default_settings
from nanoinfer.viz.words import one_line

MARGIN = 14.0
HATCH_STRIP, SHARED_STRIP = 0.18, 0.36  # parts of a cell's height
HEAD = 8.0  # of an arrow
Look = Style | Sequence[Style]  # one style, or those of all that share
SPACING = 7.0  # CSS pixels from one line to the next, along the edge
DOTS = 5.0  # and from one dot to the next
RADIUS = 0.9


class Sheet:
    """Collects shapes and texts; x to the right, y down. `y` is where the next part begins.

    `caption`: one sentence that says what to look at, beneath everything else and first in the picture's words.
    """

    def __init__(self, title: str | None = None, default_title: str = "", *, caption: str | None = None):
        self._caption = caption
        self.y = MARGIN
        self.left, self.right = MARGIN, WIDTH - MARGIN
        self._artists: list[Callable[[], Artist | None]] = []  # made all at once, under default settings
        title = default_title if title is None else str(title)
        if title:
            self.text(self.left, self.y, title, size=11, weight="bold", va="top", width=self.right - self.left)
            self.y += 24

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        style: Style | None = None,
        *,
        edge: str | None = None,
        line: float = 0.6,
        dashed: bool = False,
        over: bool = False,
        name: str = "",
    ) -> None:
        """A rectangle that looks like `style` (None: no fill). `name`: what it stands for, its matplotlib `gid`."""
        z = 3.0 if over else 1.0
        if style is not None:
            look: dict[str, Any] = {"facecolor": style.face, "linewidth": 0, "zorder": z, "gid": name or None}
            self._artists.append(partial(Rectangle, (x, y), width, height, **look))
            if style.hatch:
                self._artists.append(partial(marks_of, style, x, y, width, height, z))
        if edge is not None:
            style_of_line = (0, (4, 2)) if dashed else "-"
            self._artists.append(
                partial(
                    Rectangle,
                    (x, y),
                    width,
                    height,
                    fill=False,
                    edgecolor=edge,
                    linewidth=line,
                    linestyle=style_of_line,
                    zorder=z + 1,
                    gid=name if style is None and name else None,
                )
            )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = BODY,
        colour: str = INK,
        ha: str = "left",
        va: str = "center",
        weight: str = "normal",
        width: float | None = None,
        behind: str | None = None,
        rotation: float = 0,
    ) -> float:
        """One line of text, ending in … where it is wider than `width`; returns its width. `behind`: a background."""
        text = drawable(text) if width is None else shortened(drawable(text), width, size, weight)
        look: dict[str, Any] = {
            "color": colour,
            "ha": ha,
            "va": va,
            "fontproperties": font(size, weight),
            "parse_math": False,
        }
        look |= {"zorder": 5, "rotation": rotation, "rotation_mode": "anchor" if rotation else "default"}
        if behind is not None:
            look["bbox"] = {"facecolor": behind, "edgecolor": "none", "pad": 0.8}
        self._artists.append(partial(Text, x, y, text, **look))
        return text_width(text, size, weight)

    def line(
        self, xs: Sequence[float], ys: Sequence[float], *, colour: str = MUTED, line: float = 1, style: str = "-"
    ) -> None:
        self._artists.append(
            partial(Line2D, xs, ys, color=colour, linewidth=line, linestyle=style, zorder=2, solid_capstyle="butt")
        )

    def ribbon(self, xs: Sequence[float], left: Sequence[float], right: Sequence[float], colour: str) -> None:
        """From between the heights `left` at x `xs[0]` to between the heights `right` at `xs[1]`; what is behind shows."""
        corners = [(xs[0], left[0]), (xs[1], right[0]), (xs[1], right[1]), (xs[0], left[1])]
        options = {"facecolor": to_rgba(colour, 0.5), "edgecolor": colour, "linewidth": 0.8, "zorder": 1.5}
        self._artists.append(partial(Polygon, corners, closed=True, **options))

    def arrow(self, xs: Sequence[float], ys: Sequence[float], *, colour: str = INK, line: float = 1.3) -> None:
        """A line through the points, each part level or upright, with a head at its end."""
        before, end = (xs[-2], ys[-2]), (xs[-1], ys[-1])
        length = ((end[0] - before[0]) ** 2 + (end[1] - before[1]) ** 2) ** 0.5 or 1.0
        ux, uy = (end[0] - before[0]) / length, (end[1] - before[1]) / length
        back = end[0] - HEAD * ux, end[1] - HEAD * uy
        self.line([*xs[:-1], back[0]], [*ys[:-1], back[1]], colour=colour, line=line)
        half = HEAD * 0.45
        corners = [end, (back[0] - half * uy, back[1] + half * ux), (back[0] + half * uy, back[1] - half * ux)]
        self._artists.append(partial(Polygon, corners, closed=True, facecolor=colour, linewidth=0, zorder=4))

    def cell(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        style: Style,
        label: str = "",
        *,
        size: float = SMALL,
        edge: str | None = "#ffffff",
        name: str = "",
        weight: str = "normal",
    ) -> bool:
        """A filled cell with its label in the middle, where that fits; returns whether it did.

        A hatched style keeps its hatch to a strip below the label: no letter is ever on a hatch.
        """
        fits = bool(label) and text_width(drawable(label), size, weight) <= width - 3
        middle = y + height / 2
        if fits and style.hatch:
            self._above_strips(x, y, width, height, [style], edge, name)
        else:
            self.rect(x, y, width, height, style, edge=edge, name=name)
        if fits:
            self.text(x + width / 2, middle, label, size=size, colour=style.text, ha="center", weight=weight)
        return fits

    def shared_cell(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        styles: Sequence[Style],
        label: str = "",
        *,
        size: float = SMALL,
        edge: str | None = "#ffffff",
        name: str = "",
    ) -> None:
        """A cell of several: the colour of the first, and below it a strip for each of the others (three at most)."""
        first, *others = styles
        middle = self._above_strips(x, y, width, height, [first, *others[:3]], edge, name, SHARED_STRIP)
        room = width - 2
        if label and text_width(drawable(label), TINY) <= room:
            size = size if text_width(drawable(label), size) <= room else TINY
            self.text(x + width / 2, middle, label, size=size, colour=first.text, ha="center")

    def _above_strips(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        styles: Sequence[Style],
        edge: str | None,
        name: str,
        share: float = HATCH_STRIP,
    ) -> float:
        """The first style without its hatch, the strips of the others below it, or of itself where it is alone; returns
        the middle of what is left for a label."""
        first, others = styles[0], styles[1:] or styles
        tall = round(height * share)
        self.rect(x, y, width, height, first._replace(hatch=""), name=name)
        for i, style in enumerate(others):
            part = f"{name} and {i + 1}" if styles[1:] and name else ""
            self.rect(x + i * width / len(others), y + height - tall, width / len(others), tall, style, name=part)
        if edge is not None:
            if styles[1:]:
                self.line([x, x + width], [y + height - tall] * 2, colour=PAPER, line=0.8)
            self.rect(x, y, width, height, edge=edge)
        return y + (height - tall) / 2

    def legend(self, entries: Sequence[tuple[Look, str]], *, outline: Sequence[str] = (), strips: bool = False) -> None:
        """Swatches with labels in as many lines as they need. Labels in `outline` get a frame instead of a fill; one with
        several styles looks as a cell that is shared does. `strips`: hatched ones look as cells with a label do."""
        x, y = self.left, self.y
        for style, label in entries:
            need = 22 + text_width(drawable(label), BODY) + 18
            if x + need > self.right and x > self.left:
                x, y = self.left, y + 20
            if label in outline and isinstance(style, Style):
                self.rect(x + 1, y + 1, 15, 12, edge=style.face, line=2)
            elif isinstance(style, Style) and style.hatch and strips:
                self._above_strips(x, y, 17, 14, [style], "#767676", f"legend {label}")
            elif isinstance(style, Style):
                self.rect(x, y, 17, 14, style, edge="#767676", name=f"legend {label}")
            else:
                self.shared_cell(x, y, 17, 14, style, edge="#767676", name=f"legend {label}")
            self.text(x + 22, y + 7, label, width=self.right - x - 22)
            x += need
        self.y = y + 24

    def caption(self, text: str, *, size: float = BODY, colour: str = MUTED) -> None:
        """A paragraph over the full width."""
        for row in wrapped(drawable(text), self.right - self.left, size):
            self.text(self.left, self.y, row, size=size, colour=colour, va="top")
            self.y += size * 1.75
        self.y += 4

    def heading(self, text: str) -> None:
        self.text(self.left, self.y, text, size=9.5, weight="bold", va="top", width=self.right - self.left)
        self.y += 20

    def picture(self, alt: str) -> Picture:
        """Everything so far as a Picture, with the caption beneath."""
        if self._caption:
            self.y += 2
            self.caption(self._caption, size=CAPTION, colour=INK)
            alt = f"{self._caption} {alt}"
        height = self.y + MARGIN / 2
        with default_settings():
            picture = Picture(WIDTH, height, one_line(alt))
            axes = picture.add_axes((0, 0, 1, 1))
            axes.set(xlim=(0, WIDTH), ylim=(height, 0))
            axes.axis("off")
            for make in self._artists:
                if (artist := make()) is not None:
                    axes.add_artist(artist)  # not add_patch, which would measure each to find limits that are set
        return picture


def marks_of(style: Style, x: float, y: float, width: float, height: float, z: float) -> PathPatch | None:
    """The hatch of `style` in the rectangle, y down, from its own lower edge; None where no mark fits in.

    Matplotlib's own hatches are one pattern behind the whole picture, of which a shape shows what happens to be behind it:
    of a strip a few pixels tall, often nothing.
    """
    bottom, paths = y + height, []
    if "." in style.hatch:
        rows = max(round(height / DOTS), 1)
        for row in range(rows):
            middle = bottom - height * (row + 0.5) / rows
            shift = DOTS / 2 * (row % 2)
            for i in range(ceil((x + RADIUS - shift) / DOTS), int((x + width - RADIUS - shift) / DOTS) + 1):
                paths.append(Path.circle((shift + i * DOTS, middle), min(RADIUS, height / 2)))
    slopes = {"/": (1,), "\\": (-1,), "x": (1, -1)}
    for slope in slopes.get(style.hatch[:1], ()):
        for i in range(ceil((x - height) / SPACING), int((x + width + height) / SPACING) + 1):
            foot = i * SPACING  # where the line meets the lower edge; it rises to the right, or to the left
            ends = sorted(((x - foot) * slope, (x + width - foot) * slope))
            low, high = max(ends[0], 0.0), min(ends[1], height)
            if high - low > 0.5:
                points = [(foot + slope * up, bottom - up) for up in (low, high)]
                paths.append(Path(np.array(points), [Path.MOVETO, Path.LINETO]))
    if not paths:
        return None
    look: dict[str, Any] = {"facecolor": style.mark, "linewidth": 0} if "." in style.hatch else {"fill": False}
    return PathPatch(Path.make_compound_path(*paths), **{"edgecolor": style.mark, "linewidth": 0.7, **look}, zorder=z)
