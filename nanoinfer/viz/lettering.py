"""Text before it is drawn: how wide it is, what fits a width, and what the font has letters for."""

from contextlib import nullcontext
from functools import cache, lru_cache

from matplotlib import rcParams, rcParamsDefault
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.font_manager import FontProperties, fontManager, get_font

from nanoinfer.viz.picture import PIXEL_RATIO, default_settings
from nanoinfer.viz.words import one_line

BODY, SMALL, TINY = 8.5, 7.5, 6.5  # points
CAPTION = 9.5


def text_width(text: str, size: float = BODY, weight: str = "normal") -> float:
    """Width of one line in CSS pixels."""
    return measure(drawable(text), size, weight)


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
def font(size: float, weight: str) -> FontProperties:
    with default_settings():
        return FontProperties(family="DejaVu Sans", size=size, weight=weight)


@lru_cache(maxsize=1)
def _glyphs() -> frozenset[int]:
    return frozenset(get_font(fontManager.findfont(font(BODY, "normal"))).get_charmap())


@lru_cache(maxsize=1)
def _ruler() -> RendererAgg:
    return RendererAgg(8, 8, 100 * PIXEL_RATIO)  # letters are as wide as they will be drawn, to the pixel


@lru_cache(maxsize=20_000)
def measure(text: str, size: float, weight: str) -> float:
    if not text:
        return 0.0
    changed = any(rcParams[name] != rcParamsDefault[name] for name in ("text.hinting", "text.hinting_factor"))
    with default_settings() if changed else nullcontext():
        width = _ruler().get_text_width_height_descent(text, font(size, weight), False)[0]
    return float(width) / PIXEL_RATIO
