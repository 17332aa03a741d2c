"""Sheet: paper to draw on from top to bottom, in CSS pixels; it grows as long as it must and becomes a Picture."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache, lru_cache, partial
from typing import Any

from matplotlib import rcParams, rcParamsDefault
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.font_manager import FontProperties, fontManager, get_font
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from nanoinfer.viz.palette import INK, MUTED, Style
from nanoinfer.viz.picture import PIXEL_RATIO, WIDTH, Picture, default_settings
from nanoinfer.viz.words import one_line

MARGIN = 14.0
BODY, SMALL, TINY = 8.5, 7.5, 6.5  # points


class Sheet:
    """Collects shapes and texts; x to the right, y down. `y` is where the next part begins."""

    def __init__(self, title: str | None = None, default_title: str = ""):
        self.y = MARGIN
        self.left, self.right = MARGIN, WIDTH - MARGIN
        self._artists: list[Callable[[], Artist]] = []  # made all at once, under default settings
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
            if style.hatch:
                look |= {"hatch": style.hatch, "edgecolor": style.mark}
            self._artists.append(partial(Rectangle, (x, y), width, height, **look))
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
            "fontproperties": _font(size, weight),
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
        """A filled cell with its label in the middle, where that fits; returns whether it did."""
        self.rect(x, y, width, height, style, edge=edge, name=name)
        fits = bool(label) and text_width(drawable(label), size, weight) <= width - 3
        if fits:
            behind = style.face if style.hatch else None
            self.text(
                x + width / 2,
                y + height / 2,
                label,
                size=size,
                colour=style.text,
                ha="center",
                behind=behind,
                weight=weight,
            )
        return fits

    def legend(self, entries: Sequence[tuple[Style, str]], *, outline: Sequence[str] = ()) -> None:
        """Swatches with labels in as many lines as they need. Labels in `outline` get a frame instead of a fill."""
        x, y = self.left, self.y
        for style, label in entries:
            need = 22 + text_width(drawable(label), BODY) + 18
            if x + need > self.right and x > self.left:
                x, y = self.left, y + 20
            if label in outline:
                self.rect(x + 1, y + 1, 15, 12, edge=style.face, line=2)
            else:
                self.rect(x, y, 17, 14, style, edge="#767676")
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
        """Everything so far as a Picture."""
        height = self.y + MARGIN / 2
        with default_settings():
            picture = Picture(WIDTH, height, one_line(alt))
            axes = picture.add_axes((0, 0, 1, 1))
            axes.set(xlim=(0, WIDTH), ylim=(height, 0))
            axes.axis("off")
            for make in self._artists:
                axes.add_artist(make())  # not add_patch, which would measure each to find limits that are set already
        return picture


def text_width(text: str, size: float = BODY, weight: str = "normal") -> float:
    """Width of one line in CSS pixels."""
    return _measure(drawable(text), size, weight)


def shortened(text: str, width: float, size: float = BODY, weight: str = "normal") -> str:
    """`text`, or as much of its beginning as fits `width` with an ellipsis."""
    if text_width(text, size, weight) <= width:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if text_width(text[:middle].rstrip() + "…", size, weight) <= width:
            low = middle
        else:
            high = middle - 1
    return text[:low].rstrip() + "…"


def wrapped(text: str, width: float, size: float = BODY) -> list[str]:
    """Lines of whole words that fit `width`."""
    rows: list[str] = []
    for word in text.split():
        if rows and text_width(f"{rows[-1]} {word}", size) <= width:
            rows[-1] += " " + word
        else:
            rows.append(shortened(word, width, size))
    return rows


def drawable(text: str) -> str:
    """`text` on one line, with what the font has no glyph for as ▯."""
    text = one_line(text)
    return text if text.isascii() else "".join(char if ord(char) in _glyphs() else "▯" for char in text)


@cache
def _font(size: float, weight: str) -> FontProperties:
    with default_settings():
        return FontProperties(family="DejaVu Sans", size=size, weight=weight)


@lru_cache(maxsize=1)
def _glyphs() -> frozenset[int]:
    return frozenset(get_font(fontManager.findfont(_font(BODY, "normal"))).get_charmap())


@lru_cache(maxsize=1)
def _ruler() -> RendererAgg:
    return RendererAgg(8, 8, 100 * PIXEL_RATIO)  # letters are as wide as they will be drawn, to the pixel


@lru_cache(maxsize=20_000)
def _measure(text: str, size: float, weight: str) -> float:
    if not text:
        return 0.0
    changed = any(rcParams[name] != rcParamsDefault[name] for name in ("text.hinting", "text.hinting_factor"))
    with default_settings() if changed else nullcontext():
        width = _ruler().get_text_width_height_descent(text, _font(size, weight), False)[0]
    return float(width) / PIXEL_RATIO
