"""Sheet: paper to draw on from top to bottom, in CSS pixels; it grows as long as it must and becomes a Picture."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypedDict

from matplotlib.artist import Artist
from matplotlib.lines import Line2D
from matplotlib.patches import Polygon, Rectangle
from matplotlib.text import Text

from nanoinfer.viz.lettering import BODY, CAPTION, SMALL, TINY, drawable, font, shortened, text_width, wrapped
from nanoinfer.viz.palette import INK, MUTED, ROLES, Style
from nanoinfer.viz.picture import WIDTH, Picture, default_settings
from nanoinfer.viz.words import one_line

MARGIN = 14.0
SHARED_STRIP = 0.36  # the part of a cell's height that shows its other owners
HEAD = 8.0  # of an arrow
Look = Style | Sequence[Style]  # one style, or those of all that share


class Heading(TypedDict, total=False):
    """What every picture takes: another `title`, and a `caption` beneath it."""

    title: str | None
    caption: str | None


class Sheet:
    """Collects shapes, each on top of those before it, and texts above all; x to the right, y down. `y` is where the next
    part begins.

    `caption`: one sentence that says what to look at, beneath everything else and first in the picture's words.
    """

    def __init__(self, title: str | None = None, default_title: str = "", *, caption: str | None = None):
        self._caption = caption
        self.y = MARGIN
        self.left, self.right = MARGIN, WIDTH - MARGIN
        self._artists: list[Callable[..., Artist]] = []  # made all at once, under default settings
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
        name: str = "",
    ) -> None:
        """A rectangle that looks like `style` (None: no fill). `name`: what it stands for, its matplotlib `gid`."""
        place = (x, y), width, height
        if style is not None:
            hatch = {"hatch": style.hatch, "edgecolor": style.mark} if style.hatch else {}
            self._add(Rectangle, *place, facecolor=style.face, linewidth=0, gid=name or None, **hatch)
        if edge is not None:
            look = {"edgecolor": edge, "linewidth": line, "linestyle": (0, (4, 2)) if dashed else "-"}
            self._add(Rectangle, *place, fill=False, gid=name if style is None and name else None, **look)

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
        look: dict[str, Any] = {"color": colour, "ha": ha, "va": va, "fontproperties": font(size, weight)}
        if behind is not None:
            look["bbox"] = {"facecolor": behind, "edgecolor": "none", "pad": 0.8}
        if rotation:
            look |= {"rotation": rotation, "rotation_mode": "anchor"}
        self._add(Text, x, y, text, parse_math=False, zorder=2, **look)
        return text_width(text, size, weight)

    def line(
        self, xs: Sequence[float], ys: Sequence[float], *, colour: str = MUTED, line: float = 1, style: str = "-"
    ) -> None:
        self._add(Line2D, xs, ys, color=colour, linewidth=line, linestyle=style, solid_capstyle="butt")

    def arrow(self, xs: Sequence[float], ys: Sequence[float], *, colour: str = INK, line: float = 1.3) -> None:
        """A line through the points, each part level or upright, with a head at its end."""
        before, end = (xs[-2], ys[-2]), (xs[-1], ys[-1])
        length = ((end[0] - before[0]) ** 2 + (end[1] - before[1]) ** 2) ** 0.5 or 1.0
        ux, uy = (end[0] - before[0]) / length, (end[1] - before[1]) / length
        back = end[0] - HEAD * ux, end[1] - HEAD * uy
        self.line([*xs[:-1], back[0]], [*ys[:-1], back[1]], colour=colour, line=line)
        half = HEAD * 0.45
        corners = [end, (back[0] - half * uy, back[1] + half * ux), (back[0] + half * uy, back[1] - half * ux)]
        self._add(Polygon, corners, closed=True, facecolor=colour, linewidth=0)

    def cell(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        look: Look,
        label: str = "",
        *,
        size: float = SMALL,
        edge: str | None = "#ffffff",
        name: str = "",
        weight: str = "normal",
    ) -> None:
        """A filled cell with its label in the middle, smaller or not at all where it doesn't fit.

        Of several styles, the first is the cell's; below it is a strip for each of the others (three at most).
        """
        first, *others = [look] if isinstance(look, Style) else look[:4]
        strip = round(height * SHARED_STRIP) if others else 0
        self.rect(x, y, width, height, first, edge=edge, name=name)
        for i, style in enumerate(others):
            place = x + i * width / len(others), y + height - strip, width / len(others), strip
            self.rect(*place, style, edge=edge, name=name and f"{name} and {i + 1}")
        size = size if text_width(label, size, weight) <= width - 3 else TINY
        if label and text_width(label, size, weight) <= width - 1:
            behind = first.face if first.hatch else None  # no letter is ever on a hatch
            middle = x + width / 2, y + (height - strip) / 2
            self.text(*middle, label, size=size, colour=first.text, ha="center", weight=weight, behind=behind)

    def legend(self, entries: Sequence[tuple[Look, str]], marked: str = "") -> None:
        """Swatches with labels in as many lines as they need; `marked`: what a pink frame means."""
        x, y = self.left, self.y
        for look, label in [*entries, *([(ROLES["highlight"], marked)] if marked else [])]:
            need = 22 + text_width(label, BODY) + 18
            if x + need > self.right and x > self.left:
                x, y = self.left, y + 20
            if label == marked:
                self.rect(x + 1, y + 1, 15, 12, edge=ROLES["highlight"].face, line=2)
            else:
                self.cell(x, y, 17, 14, look, edge="#767676", name=f"legend {label}")
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
                axes.add_artist(make())  # not add_patch, which would measure each to find limits that are set
        return picture

    def _add(self, kind: Callable[..., Artist], *place: Any, **look: Any) -> None:
        self._artists.append(partial(kind, *place, **{"zorder": 1} | look))
