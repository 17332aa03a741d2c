"""roofline, product_roofline: how fast passes and products were, beneath what the machine's memory and arithmetic allow."""

from collections.abc import Mapping, Sequence
from math import atan2, degrees
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator

from nanoinfer.viz.charts import LINE_STYLES, by_factors, finish, text
from nanoinfer.viz.charts import MARKERS as SHAPES
from nanoinfer.viz.lettering import CAPTION, drawable, wrapped
from nanoinfer.viz.palette import BARS, INK, LINES, MUTED, PHASE_STYLES, Style
from nanoinfer.viz.picture import WIDTH, Picture, default_settings
from nanoinfer.viz.sheet import MARGIN
from nanoinfer.viz.words import num_bytes, number, one_line, percent

HEIGHT = 420.0
MARKERS = {"EXTEND": "s", "DECODE": "o"}
GIGA = 1e9
FONT: dict[str, Any] = {"fontfamily": "DejaVu Sans", "parse_math": False, "fontsize": 8.5}

Measured = tuple[str, float, float, float]


def roofline(
    passes: Sequence[Measured],
    *,
    flop_per_second: float,
    bytes_per_second: float,
    title: str | None = None,
    caption: str | None = None,
) -> Picture:
    """Measured passes `(label, flop, bytes, seconds)` beneath the roof of a machine: the rate that it can reach at most.

    Across: how many arithmetic operations (flop) a pass makes for each byte that it reads. Up: how many it makes in a
    second. Where the roof rises, the memory sets the limit (`bytes_per_second`), where it is level, the arithmetic does
    (`flop_per_second`). A label that begins with EXTEND or DECODE has that pass's colour.
    """
    with default_settings():
        picture = _plot_passes(passes, flop_per_second, bytes_per_second, title, caption)
    parts = [
        f"{label}: {number(flop / size)} operations per byte, {num_bytes(size)} in {_time(seconds)}, "
        + _rate(flop, size, seconds, flop_per_second, bytes_per_second)
        for label, flop, size, seconds in passes
    ]
    picture.alt = _words(flop_per_second, bytes_per_second, caption, parts)
    return picture


def product_roofline(
    products: Mapping[str, Sequence[Measured]],
    *,
    flop_per_second: float,
    bytes_per_second: float,
    title: str | None = None,
    caption: str | None = None,
) -> Picture:
    """A line per product through its measurements `(label, flop, bytes, seconds)`, such as one per number of rows.

    Axes and roof are those of `roofline`. The labels are written beneath the slowest of the products.
    """
    with default_settings():
        picture = _plot_products(products, flop_per_second, bytes_per_second, title, caption)
    parts = [
        f"{name}, {label}: {number(flop / size)} operations per byte, "
        + _rate(flop, size, seconds, flop_per_second, bytes_per_second)
        for name, measured in products.items()
        for label, flop, size, seconds in measured
    ]
    picture.alt = _words(flop_per_second, bytes_per_second, caption, parts)
    return picture


def _rate(flop: float, size: float, seconds: float, flops: float, bandwidth: float) -> str:
    cause = "memory" if flop / size * bandwidth < flops else "arithmetic"
    return (
        f"{number(flop / seconds / GIGA)} billion operations per second, "
        f"{percent(flop / seconds, limit(flop / size, flops, bandwidth))} of the roof ({cause} is the limit)"
    )


def _words(flops: float, bandwidth: float, caption: str | None, parts: Sequence[str]) -> str:
    limits = f"{number(bandwidth / GIGA)} GB and {number(flops / GIGA)} billion operations per second"
    return one_line(f"{caption + ' ' if caption else ''}Roof of this machine: {limits}. {'; '.join(parts)}.")


def limit(intensity: float, flop_per_second: float, bytes_per_second: float) -> float:
    """The roof at so many flop per byte: flop per second."""
    return min(flop_per_second, intensity * bytes_per_second)


def _time(seconds: float) -> str:
    """A time in the unit that has digits before the point."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{number(seconds / size)} {unit}"
    return f"{number(seconds / 1e-6)} µs"


def _style(label: str) -> Style:
    return PHASE_STYLES.get(label.split()[0].strip(",:").lower() if label.split() else "", BARS[0])


def _canvas(title: str | None, caption: str | None) -> tuple[Picture, Axes]:
    """An empty chart with its caption."""
    rows = wrapped(drawable(caption), WIDTH - 2 * MARGIN, CAPTION) if caption else []
    below = len(rows) * CAPTION * 1.75 + (10 if rows else 0)
    height = HEIGHT + below
    picture = Picture(WIDTH, height)
    axes = picture.add_axes((0.1, (58 + below) / height, 0.87, (HEIGHT - 58 - (16 if title == "" else 40)) / height))
    for i, row in enumerate(rows):
        text(picture, MARGIN / WIDTH, (below - 4 - i * CAPTION * 1.75) / height, row, CAPTION, va="top")
    return picture, axes


def _plot_passes(
    points: Sequence[Measured], flops: float, bandwidth: float, title: str | None, caption: str | None
) -> Picture:
    picture, axes = _canvas(title, caption)
    ridge = flops / bandwidth
    across = [flop / size for _, flop, size, _ in points]
    low, high = min(*across, ridge) / 3, max(*across, ridge) * 4
    rates = [flop / seconds / GIGA for _, flop, _, seconds in points]
    bottom, top = min(*rates, low * bandwidth / GIGA), flops / GIGA * 2.2
    every = by_factors(axes, "x", [low, high]), by_factors(axes, "y", [bottom, top])
    axes.set_xlim(low, high)
    axes.set_ylim(bottom / 1.3, top)
    draw_roof(axes, low, high, top, flops, bandwidth)
    for (label, *_), x, rate in zip(points, across, rates, strict=True):
        roof = limit(x, flops, bandwidth) / GIGA
        style = _style(label)
        axes.plot([x, x], [rate, roof], color=MUTED, linewidth=1, linestyle=":", zorder=2)
        marker = next((sign for kind, sign in MARKERS.items() if label.startswith(kind)), "D")
        axes.plot(
            [x], [rate], marker, color=style.face, markeredgecolor=INK, markersize=9, zorder=4, gid=f"pass {label}"
        )
        said = f"{drawable(label)}: {percent(rate, roof)} of the roof"
        offset, side = ((9, -11), "right") if x > (low * high) ** 0.5 else ((9, -4), "left")
        behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85}
        look = FONT | {"color": INK, "zorder": 5, "bbox": behind, "va": "top", "ha": side}
        axes.annotate(said, (x, rate), offset, textcoords="offset points", **look)
    title = "What limits a pass on this machine" if title is None else title
    finish(axes, "arithmetic operations for each byte read", "billion operations per second", title, every)
    return picture


def draw_roof(axes: Axes, low: float, high: float, top: float, flops: float, bandwidth: float) -> None:
    """The roof from `low` to `high` operations per byte, with its two limits in words. The axes must be scaled already."""
    ridge = flops / bandwidth
    roof = [limit(x, flops, bandwidth) / GIGA for x in (low, ridge, high)]
    axes.plot([low, ridge, high], roof, color=INK, linewidth=2.2)
    axes.fill_between([low, ridge, high], roof, top, color="#efefef", linewidth=0, zorder=0)
    level = f"arithmetic is the limit: {number(flops / GIGA)} billion operations per second"
    axes.annotate(
        level, (high, flops / GIGA), (-6, 7), textcoords="offset points", ha="right", va="bottom", color=INK, **FONT
    )
    middle = (low * ridge) ** 0.5
    start, end = axes.transData.transform([(low, roof[0]), (ridge, roof[1])])
    axes.annotate(
        f"memory is the limit: {number(bandwidth / GIGA)} GB per second",
        (middle, middle * bandwidth / GIGA),
        (-5, 8),
        textcoords="offset points",
        ha="center",
        va="bottom",
        color=INK,
        rotation=degrees(atan2(end[1] - start[1], end[0] - start[0])),
        rotation_mode="anchor",
        **FONT,
    )


def _plot_products(
    points: Mapping[str, Sequence[Measured]], flops: float, bandwidth: float, title: str | None, caption: str | None
) -> Picture:
    picture, axes = _canvas(title, caption)
    everything = [point for measured in points.values() for point in measured]
    across = [flop / size for _, flop, size, _ in everything]
    rates = [flop / seconds / GIGA for _, flop, _, seconds in everything]
    low, high = min(*across, flops / bandwidth) / 2, max(*across, flops / bandwidth) * 2.5
    bottom, top = min(*rates, low * bandwidth / GIGA), max(flops / GIGA, *rates) * 2.2
    every = by_factors(axes, "x", [low, high]), by_factors(axes, "y", [bottom, top])
    axes.set_xlim(low, high)
    axes.set_ylim(bottom / 1.3, top)
    for axis, (least, most) in ((axes.xaxis, (low, high)), (axes.yaxis, (bottom / 1.3, top))):
        axis.set_major_locator(FixedLocator([at for at in axis.get_majorticklocs() if least <= at <= most]))
    draw_roof(axes, low, high, top, flops, bandwidth)
    slowest: dict[str, tuple[float, float]] = {}
    for i, (name, measured) in enumerate(points.items()):
        xs, ys = [f / b for _, f, b, _ in measured], [f / s / GIGA for _, f, _, s in measured]
        look: dict[str, Any] = {"color": LINES[i % 8], "marker": SHAPES[i % 8], "markersize": 6, "linewidth": 1.4}
        axes.plot(xs, ys, LINE_STYLES[i % 4], label=drawable(name), zorder=4, **look)
        for (label, *_), x, y in zip(measured, xs, ys, strict=True):
            slowest[label] = min(slowest.get(label, (x, y)), (x, y), key=lambda point: point[1])
    for label, (x, y) in slowest.items():
        axes.annotate(
            drawable(label),
            (x, y),
            (0, -9),
            textcoords="offset points",
            ha="center",
            va="top",
            zorder=5,
            color=INK,
            **FONT,
        )
    legend = axes.legend(frameon=False, loc="lower right", prop={"family": "DejaVu Sans", "size": 8.5})
    for entry in legend.get_texts():
        entry.set_parse_math(False)
        entry.set_color(INK if entry.get_text() else MUTED)
    title = "What limits a product on this machine" if title is None else title
    finish(axes, "arithmetic operations for each byte read or written", "billion operations per second", title, every)
    return picture
