"""roofline: how fast measured passes were, beneath what the machine's memory and its arithmetic allow."""

from collections.abc import Sequence
from math import atan2, degrees
from typing import Any

from matplotlib.axes import Axes

from nanoinfer.viz.charts import by_factors, finish, text
from nanoinfer.viz.lettering import CAPTION, drawable, wrapped
from nanoinfer.viz.palette import BARS, INK, MUTED, PHASE_STYLES, Style
from nanoinfer.viz.picture import WIDTH, Picture, default_settings
from nanoinfer.viz.sheet import MARGIN
from nanoinfer.viz.words import expect_type, finite, num_bytes, number, one_line, percent

HEIGHT = 420.0
MARKERS = {"EXTEND": "s", "DECODE": "o"}
GIGA = 1e9

Measured = tuple[str, float, float, float]


def roofline(
    passes: Sequence[Measured],
    *,
    flop_per_second: float,
    bytes_per_second: float,
    machine: str = "this machine",
    title: str | None = None,
    caption: str | None = None,
) -> Picture:
    """Measured passes `(label, flop, bytes, seconds)` beneath the roof of a machine: the rate that it can reach at most.

    Across: how many arithmetic operations (flop) a pass makes for each byte that it reads. Up: how many it makes in a
    second. Where the roof rises, the memory sets the limit (`bytes_per_second`), where it is level, the arithmetic does
    (`flop_per_second`). A label that begins with EXTEND or DECODE has that pass's colour. Raises ValueError for no passes
    and for numbers that are not above 0.
    """
    expect_type("passes", passes, Sequence)
    if not passes:
        raise ValueError("passes: must have at least one")
    roof = {"flop_per_second": flop_per_second, "bytes_per_second": bytes_per_second}
    for name, value in roof.items():
        positive(name, value)
    points: list[Measured] = []
    for i, given in enumerate(passes):
        if not isinstance(given, tuple | list) or len(given) != 4:
            raise ValueError(f"passes[{i}]: must be (label, flop, bytes, seconds), got {given!r}")
        names = (f"passes[{i}] {name}" for name in ("flop", "bytes", "seconds"))
        flop, size, seconds = (positive(name, value) for name, value in zip(names, given[1:], strict=True))
        points.append((str(given[0]), flop, size, seconds))
    with default_settings():
        picture = _plot(points, flop_per_second, bytes_per_second, machine, title, caption)
    parts = [
        f"{label}: {number(flop / size)} operations per byte, {num_bytes(size)} in {_time(seconds)}, "
        f"{number(flop / seconds / GIGA)} billion operations per second, "
        f"{percent(flop / seconds, limit(flop / size, flop_per_second, bytes_per_second))} of the roof "
        f"({cause(flop / size, flop_per_second, bytes_per_second)} is the limit)"
        for label, flop, size, seconds in points
    ]
    limits = f"{number(bytes_per_second / GIGA)} GB and {number(flop_per_second / GIGA)} billion operations per second"
    picture.alt = one_line(f"{caption + ' ' if caption else ''}Roof of {machine}: {limits}. {'; '.join(parts)}.")
    return picture


def positive(name: str, value: object) -> float:
    if finite(name, value) <= 0:
        raise ValueError(f"{name}={value}: must be above 0")
    return finite(name, value)


def limit(intensity: float, flop_per_second: float, bytes_per_second: float) -> float:
    """The roof at so many flop per byte: flop per second."""
    return min(flop_per_second, intensity * bytes_per_second)


def cause(intensity: float, flop_per_second: float, bytes_per_second: float) -> str:
    return "memory" if intensity * bytes_per_second < flop_per_second else "arithmetic"


def _time(seconds: float) -> str:
    """A time in the unit that has digits before the point."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{number(seconds / size)} {unit}"
    return f"{number(seconds / 1e-6)} µs"


def _style(label: str) -> Style:
    return PHASE_STYLES.get(label.split()[0].strip(",:").lower() if label.split() else "", BARS[0])


def _plot(
    points: Sequence[Measured], flops: float, bandwidth: float, machine: str, title: str | None, caption: str | None
) -> Picture:
    rows = wrapped(drawable(caption), WIDTH - 2 * MARGIN, CAPTION) if caption else []
    below = len(rows) * CAPTION * 1.75 + (10 if rows else 0)
    height = HEIGHT + below
    picture = Picture(WIDTH, height)
    axes = picture.add_axes((0.1, (58 + below) / height, 0.87, (HEIGHT - 58 - (16 if title == "" else 40)) / height))
    for i, row in enumerate(rows):
        text(picture, MARGIN / WIDTH, (below - 4 - i * CAPTION * 1.75) / height, row, CAPTION, va="top")
    ridge = flops / bandwidth
    across = [flop / size for _, flop, size, _ in points]
    low, high = min(*across, ridge) / 3, max(*across, ridge) * 4
    rates = [flop / seconds / GIGA for _, flop, _, seconds in points]
    bottom, top = min(*rates, low * bandwidth / GIGA), flops / GIGA * 2.2
    every = by_factors(axes, "x", [low, high]), by_factors(axes, "y", [bottom, top])
    axes.set_xlim(low, high)
    axes.set_ylim(bottom / 1.3, top)
    draw_roof(axes, low, high, top, flops, bandwidth)
    font: dict[str, Any] = {"fontfamily": "DejaVu Sans", "parse_math": False, "fontsize": 8.5}
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
        look = font | {"color": INK, "zorder": 5, "bbox": behind, "va": "top", "ha": side}
        axes.annotate(said, (x, rate), offset, textcoords="offset points", **look)
    title = f"What limits a pass on {machine}" if title is None else title
    finish(axes, "arithmetic operations for each byte read", "billion operations per second", title, every)
    return picture


def draw_roof(axes: Axes, low: float, high: float, top: float, flops: float, bandwidth: float) -> None:
    """The roof from `low` to `high` operations per byte, with its two limits in words. The axes must be scaled already."""
    ridge = flops / bandwidth
    roof = [limit(x, flops, bandwidth) / GIGA for x in (low, ridge, high)]
    axes.plot([low, ridge, high], roof, color=INK, linewidth=2.2)
    axes.fill_between([low, ridge, high], roof, top, color="#efefef", linewidth=0, zorder=0)
    font: dict[str, Any] = {"fontfamily": "DejaVu Sans", "parse_math": False, "fontsize": 8.5}
    level = f"arithmetic is the limit: {number(flops / GIGA)} billion operations per second"
    axes.annotate(
        level, (high, flops / GIGA), (-6, 7), textcoords="offset points", ha="right", va="bottom", color=INK, **font
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
        rotation=_degrees(end[0] - start[0], end[1] - start[1]),
        rotation_mode="anchor",
        **font,
    )


def _degrees(across: float, up: float) -> float:
    return degrees(atan2(up, across))
