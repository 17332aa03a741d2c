"""product_roofline: how fast each product of a model is beneath the roof of a machine, for few rows and for many."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.ticker import FixedLocator

from nanoinfer.viz.charts import LINE_STYLES, by_factors, finish, text
from nanoinfer.viz.charts import MARKERS as SHAPES
from nanoinfer.viz.lettering import CAPTION, drawable, wrapped
from nanoinfer.viz.palette import INK, LINES, MUTED
from nanoinfer.viz.picture import WIDTH, Picture, default_settings
from nanoinfer.viz.roofline import GIGA, HEIGHT, Measured, cause, draw_roof, limit, positive
from nanoinfer.viz.sheet import MARGIN
from nanoinfer.viz.words import expect_type, number, one_line, percent


def product_roofline(
    products: Mapping[str, Sequence[Measured]],
    *,
    flop_per_second: float,
    bytes_per_second: float,
    machine: str = "this machine",
    title: str | None = None,
    caption: str | None = None,
) -> Picture:
    """A line per product through its measurements `(label, flop, bytes, seconds)`, such as one per number of rows.

    Axes and roof are those of `roofline`. The labels are written beneath the slowest of the products. Raises ValueError for
    no products, for one without measurements, and for numbers that are not above 0.
    """
    expect_type("products", products, Mapping)
    if not products or not all(products.values()):
        raise ValueError("products: must have at least one, each with a measurement")
    flops, bandwidth = positive("flop_per_second", flop_per_second), positive("bytes_per_second", bytes_per_second)
    points: dict[str, list[Measured]] = {}
    for name, measured in products.items():
        points[str(name)] = [
            (str(label), *(positive(f"products[{name!r}], {label}", value) for value in values))  # type: ignore[misc]
            for label, *values in measured
        ]
    with default_settings():
        picture = _plot(
            points, flops, bandwidth, f"What limits a product on {machine}" if title is None else title, caption
        )
    parts = [
        f"{name}, {label}: {number(flop / size)} operations per byte, {number(flop / seconds / GIGA)} billion operations "
        f"per second, {percent(flop / seconds, limit(flop / size, flops, bandwidth))} of the roof "
        f"({cause(flop / size, flops, bandwidth)} is the limit)"
        for name, measured in points.items()
        for label, flop, size, seconds in measured
    ]
    limits = f"{number(bandwidth / GIGA)} GB and {number(flops / GIGA)} billion operations per second"
    picture.alt = one_line(f"{caption + ' ' if caption else ''}Roof of {machine}: {limits}. {'; '.join(parts)}.")
    return picture


def _plot(
    points: Mapping[str, Sequence[Measured]], flops: float, bandwidth: float, title: str, caption: str | None
) -> Picture:
    rows = wrapped(drawable(caption), WIDTH - 2 * MARGIN, CAPTION) if caption else []
    below = len(rows) * CAPTION * 1.75 + (10 if rows else 0)
    height = HEIGHT + below
    picture = Picture(WIDTH, height)
    axes = picture.add_axes((0.1, (58 + below) / height, 0.87, (HEIGHT - 58 - (16 if title == "" else 40)) / height))
    for i, row in enumerate(rows):
        text(picture, MARGIN / WIDTH, (below - 4 - i * CAPTION * 1.75) / height, row, CAPTION, va="top")
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
    font: dict[str, Any] = {"fontfamily": "DejaVu Sans", "parse_math": False, "fontsize": 8.5, "color": INK}
    for label, (x, y) in slowest.items():
        axes.annotate(
            drawable(label), (x, y), (0, -9), textcoords="offset points", ha="center", va="top", zorder=5, **font
        )
    legend = axes.legend(frameon=False, loc="lower right", prop={"family": "DejaVu Sans", "size": 8.5})
    for entry in legend.get_texts():
        entry.set_parse_math(False)
        entry.set_color(INK if entry.get_text() else MUTED)
    finish(axes, "arithmetic operations for each byte read or written", "billion operations per second", title, every)
    return picture
