"""bars and lines: plain charts of measured numbers."""

from collections.abc import Mapping, Sequence
from functools import partial
from math import ceil, floor, inf, log2
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from nanoinfer.viz.lettering import CAPTION, SMALL, drawable, text_width, wrapped
from nanoinfer.viz.palette import BARS, GRID, INK, LINES, MUTED
from nanoinfer.viz.picture import WIDTH, Picture, default_settings
from nanoinfer.viz.sheet import MARGIN, Sheet
from nanoinfer.viz.words import count, number, one_line, ratio

LINE_STYLES = ("-", "--", "-.", ":")
FACTORS = (
    (2.0, "twice as much"),
    (10.0, "10 times as much"),
    (1000.0, "1,000 times as much"),
    (1e9, "a billion times as much"),
    (1e99, "10⁹⁹ times as much"),
)
MOST_FACTORS = 11  # grid lines of an axis by factors
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def bars(
    values: Mapping[str, float] | Mapping[str, Mapping[str, float]],
    *,
    unit: str,
    title: str | None = None,
    compare: str | None = None,
    colours: Sequence[str] = (),
    caption: str | None = None,
) -> Picture:
    """One bar per label, its number in `unit` at its end; with `compare="label"` also how many times that bar it is.

    `{group: {label: number}}` draws the bars of a group together, the same colour for the same label. `colours`: labels of
    groups in the order of their colours, if that is not the order of the bars. Raises ValueError for no values, negative or
    infinite ones, and a `compare` that is no label or is 0 (there is none in groups).
    """
    groups = _grouped(values)
    numbers = {f"{group}, {label}" if group else label: v for group, of in groups.items() for label, v in of.items()}
    for name, value in numbers.items():
        if not 0 <= value < inf:
            raise ValueError(f"values[{name!r}]={value}: must be finite and not negative")
    if compare is not None and ("" not in groups or not numbers.get(compare)):
        raise ValueError(f"compare={compare!r}: must be one of {', '.join(numbers)}, with a value above 0")
    base = numbers[compare] if compare is not None else None
    texts = {
        label: f"{number(value)} {unit}" + ("" if base is None or label == compare else f"  ({ratio(value / base)}×)")
        for label, value in numbers.items()
    }
    sheet = Sheet(title, caption=caption)
    labels = list(dict.fromkeys(label for labelled in groups.values() for label in labelled))
    of_label = {label: BARS[i % 4] for i, label in enumerate(dict.fromkeys([*colours, *labels]))}
    beside = labels if "" in groups else list(groups)
    gutter = min(max(text_width(drawable(label)) for label in beside) + 14, 280)
    x0 = sheet.left + gutter
    room = sheet.right - x0 - max(text_width(text) for text in texts.values()) - 14
    longest = max(numbers.values()) or 1.0
    sheet.y += 2
    top = sheet.y
    height, pitch = (22, 30) if "" in groups else (18, 20)
    for group, labelled in groups.items():
        if group:
            sheet.text(x0 - 8, sheet.y + pitch * len(labelled) / 2, group, ha="right", width=gutter - 8)
        for label, value in labelled.items():
            if not group:
                sheet.text(x0 - 8, sheet.y + height / 2, label, ha="right", width=gutter - 8)
            style = BARS[0 if compare in (None, label) else 1] if not group else of_label[label]
            name = f"{group}, {label}" if group else label
            sheet.rect(x0, sheet.y, room * value / longest, height, style, name=f"bar {name}")
            sheet.text(x0 + room * value / longest + 7, sheet.y + height / 2, texts[name])
            sheet.y += pitch
        sheet.y += 10 if group else 0
    sheet.line([x0, x0], [top - 4, sheet.y - 4], colour=MUTED)
    if "" not in groups:
        sheet.y += 2
        sheet.legend([(of_label[label], label) for label in labels])
    if compare is not None:
        sheet.y += 2
        sheet.caption(f"In brackets: how many times as much as {compare}.", size=SMALL)
    alt = ", ".join(f"{label}: {text.replace('  ', ' ')}" for label, text in texts.items())
    return sheet.picture(f"{alt}{f', ratios to {compare}' if compare else ''}.")


def _grouped(values: Mapping[str, float] | Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """`{group: {label: value}}`; values without groups are those of group ""."""
    nested = any(isinstance(value, Mapping) for value in values.values())
    given: Mapping[str, Any] = values if nested else {"": values}
    groups = {str(group): {str(k): float(v) for k, v in of.items()} for group, of in given.items()}
    if not all(groups.values()):
        raise ValueError("values: must have at least one")
    return groups


def lines(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    x: str,
    y: str,
    title: str | None = None,
    log: bool = False,
    times: str | None = None,
    ticks: Sequence[float] | None = None,
    caption: str | None = None,
) -> Picture:
    """One line per label through its points `(xs, ys)`; `x`, `y`: what the axes say.

    `log`: both axes go by factors instead of differences, and say so. `times="as long"`: `y` is a ratio, and its axis says
    "twice as long" instead of 2 and "just as long" instead of 1. `ticks`: the numbers that are at the x axis. Raises
    ValueError for no series, for an empty one, lengths that differ, and with `log` numbers that are not positive.
    """
    points: dict[str, tuple[list[float], list[float]]] = {}
    for label, (xs, ys) in series.items():
        points[str(label)] = across, up = list(map(float, xs)), list(map(float, ys))
        if not across or len(across) != len(up) or (log and min(across + up) <= 0):
            raise ValueError(f"series[{label!r}]: must be xs and as many ys{', all above 0' if log else ''}")
    with default_settings():
        picture = _plot(points, x, y, title, log, times, ticks, caption)
    say = number if times is None else partial(in_words, times)
    alt = f"{y} over {x}: " + "; ".join(
        f"{label}, {count(len(across), 'point')}, from {say(up[0])} at {number(across[0])} "
        f"to {say(up[-1])} at {number(across[-1])}"
        for label, (across, up) in points.items()
    )
    picture.alt = one_line(f"{caption + ' ' if caption else ''}{alt}.")
    return picture


def in_words(times: str, value: float) -> str:
    """A ratio as one says it: `twice as long`, `10 times as long`, `half as long`."""
    if not value:
        return "0"
    said = {1.0: "just", 2.0: "twice", 0.5: "half"}
    return f"{said.get(round(value, 3), f'{number(value)} times')} {times}"


def _plot(
    points: Mapping[str, tuple[list[float], list[float]]],
    x: str,
    y: str,
    title: str | None,
    log: bool,
    times: str | None,
    ticks: Sequence[float] | None,
    caption: str | None,
) -> Picture:
    rows = wrapped(drawable(caption), WIDTH - 2 * MARGIN, CAPTION) if caption else []
    below = len(rows) * CAPTION * 1.75 + (10 if rows else 0)
    picture = Picture(WIDTH, 380 + below)
    left = (0.18 if log else 0.16) if times is not None else 0.1 if log else 0.09
    bottom = (0.14 * 380 + below) / (380 + below)
    axes = picture.add_axes((left, bottom, 0.97 - left, (0.74 if title else 0.82) * 380 / (380 + below)))
    for i, row in enumerate(rows):
        at = (below - 4 - i * CAPTION * 1.75) / (380 + below)
        text(picture, MARGIN / WIDTH, at, row, CAPTION, va="top")
    for i, (label, (across, up)) in enumerate(points.items()):
        axes.plot(
            across,
            up,
            LINE_STYLES[i % 4],
            label=drawable(label),
            color=LINES[i % 8],
            marker=MARKERS[i % 8],
            markersize=5 if len(across) <= 40 else 0,
            linewidth=2,
        )
    every = None
    if log:
        across, up = ([v for line in points.values() for v in line[i]] for i in (0, 1))
        every = by_factors(axes, "x", across), by_factors(axes, "y", up)
    else:
        axes.set_ylim(bottom=min(0, *(v for _, up in points.values() for v in up)))
        axes.xaxis.set_major_formatter(FuncFormatter(tick))
        axes.yaxis.set_major_formatter(FuncFormatter(tick))
    if ticks is not None:
        axes.xaxis.set_major_locator(FixedLocator(list(ticks)))
        every = every and ("", every[1])
    if times is not None:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, place=None: in_words(times, value)))
    finish(axes, x, y, title, every)
    if len(points) > 1:
        legend = axes.legend(frameon=False, prop={"family": "DejaVu Sans", "size": 8.5})
        for entry in legend.get_texts():
            entry.set_parse_math(False)
    return picture


def finish(axes: Axes, x: str, y: str, title: str | None, every: tuple[str, str] | None = None) -> None:
    """Grid, labels and title as all charts have them. `every`: of axes by factors, what one grid line is to the next."""
    notes = [each and f"(each grid line: {each})" for each in every or ("", "")]
    axes.grid(color=GRID, alpha=0.3, linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8.5, colors=INK, labelfontfamily="DejaVu Sans")
    axes.set_xlabel(f"{drawable(x)}  {notes[0]}".rstrip(), fontsize=9, parse_math=False, fontfamily="DejaVu Sans")
    axes.set_ylabel(f"{drawable(y)}\n{notes[1]}".rstrip(), fontsize=9, parse_math=False, fontfamily="DejaVu Sans")
    if title:
        axes.set_title(
            drawable(title), fontsize=11, fontweight="bold", loc="left", parse_math=False, fontfamily="DejaVu Sans"
        )


def text(picture: Picture, x: float, y: float, words: str, size: float, **options: Any) -> None:
    """A text on a chart, in parts of its width and height."""
    picture.text(x, y, drawable(words), fontsize=size, color=INK, parse_math=False, fontfamily="DejaVu Sans", **options)


def by_factors(axes: Axes, name: str, values: Sequence[float]) -> str:
    """Make the axis "x" or "y" logarithmic, with plain numbers; returns what a grid line is to the one before."""
    (axes.set_xscale if name == "x" else axes.set_yscale)("log")
    axis = axes.xaxis if name == "x" else axes.yaxis
    low, high = log2(min(values)), log2(max(values))
    step, said = next((log2(n), said) for n, said in FACTORS if high - low <= MOST_FACTORS * log2(n))
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    if last - first < 2:  # at least two lines are needed to see how far a factor is
        (axes.set_xlim if name == "x" else axes.set_ylim)(
            2 ** (first * step - 0.1), 2 ** (max(last, first + 1) * step + 0.1)
        )
    elif name == "y" and step == 1:  # a line below the lowest point, from which to read how much it is
        axes.set_ylim(bottom=2 ** (first - 0.1))
    axis.set_major_locator(FixedLocator([2 ** (i * step) for i in range(first, max(last, first + 1) + 1)]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(tick))
    return said


def tick(value: float, place: int | None = None) -> str:
    """A number of an axis: 1, 10, 1,000, never 10³."""
    whole = abs(value - round(value)) < 1e-6 * abs(value)
    return number(float(round(value) if whole else f"{value:.6g}"))
