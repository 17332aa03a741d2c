"""bars, lines, roofline: plain charts of measured numbers."""

from collections.abc import Mapping, Sequence
from functools import partial
from math import atan2, ceil, degrees, floor, inf, log
from typing import Any, Unpack

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from nanoinfer.viz.lettering import CAPTION, SMALL, drawable, text_width, wrapped
from nanoinfer.viz.palette import BARS, GRID, INK, LINES, MUTED, PHASE_STYLES
from nanoinfer.viz.picture import WIDTH, Picture, default_settings
from nanoinfer.viz.sheet import MARGIN, Heading, Sheet
from nanoinfer.viz.words import count, duration, num_bytes, number, one_line, percent, ratio

LINE_STYLES = ("-", "--", "-.", ":")
FONT: dict[str, Any] = {"fontfamily": "DejaVu Sans", "parse_math": False}
MOST_FACTORS = 11  # grid lines of an axis by factors
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def bars(
    values: Mapping[str, float] | Mapping[str, Mapping[str, float]],
    *,
    unit: str,
    compare: str | None = None,
    **heading: Unpack[Heading],
) -> Picture:
    """One bar per label, its number in `unit` at its end; with `compare="label"` also how many times that bar it is.

    `{group: {label: number}}` draws the bars of a group together, the same colour for the same label. Raises ValueError for
    no values, negative or infinite ones, and a `compare` that is no label or is 0 (there is none in groups).
    """
    nested = any(isinstance(value, Mapping) for value in values.values())
    given: Mapping[str, Any] = values if nested else {"": values}
    groups = {str(group): {str(k): float(v) for k, v in of.items()} for group, of in given.items()}
    numbers = {f"{group}, {label}" if group else label: v for group, of in groups.items() for label, v in of.items()}
    for name, value in numbers.items():
        if not 0 <= value < inf:
            raise ValueError(f"values[{name!r}]={value}: must be finite and not negative")
    if not numbers or (compare is not None and ("" not in groups or not numbers.get(compare))):
        raise ValueError(f"compare={compare!r}: must be one of {', '.join(numbers)}, with a value above 0")
    base = numbers[compare] if compare is not None else None
    texts = {
        label: f"{number(value)} {unit}" + ("" if base is None or label == compare else f"  ({ratio(value / base)}×)")
        for label, value in numbers.items()
    }
    sheet = Sheet(**heading)
    labels = list(dict.fromkeys(label for labelled in groups.values() for label in labelled))
    of_label = {label: BARS[i % 4] for i, label in enumerate(labels)}
    beside = labels if "" in groups else list(groups)
    gutter = min(max(text_width(label) for label in beside) + 14, 280)
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


def lines(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    x: str,
    y: str,
    log: bool = False,
    times: str | None = None,
    ticks: Sequence[float] | None = None,
    **heading: Unpack[Heading],
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
        left = (0.18 if log else 0.16) if times is not None else 0.1 if log else 0.09
        picture, axes = chart(380, left, **heading)
        for i, (label, (across, up)) in enumerate(points.items()):
            size = 5 if len(across) <= 40 else 0
            axes.plot(across, up, label=drawable(label), markersize=size, linewidth=2, **line_look(i))
        every = None
        if log:
            all_xs, all_ys = ([v for line in points.values() for v in line[i]] for i in (0, 1))
            every = by_factors(axes, "x", all_xs), by_factors(axes, "y", all_ys)
        else:
            axes.set_ylim(bottom=min(0, *(v for _, up in points.values() for v in up)))
            axes.xaxis.set_major_formatter(FuncFormatter(tick))
            axes.yaxis.set_major_formatter(FuncFormatter(tick))
        if ticks is not None:
            axes.xaxis.set_major_locator(FixedLocator(list(ticks)))
            every = every and ("", every[1])
        if times is not None:
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, place=None: in_words(times, value)))
        finish(axes, x, y, every)
    say = number if times is None else partial(in_words, times)
    alt = f"{y} over {x}: " + "; ".join(
        f"{label}, {count(len(across), 'point')}, from {say(up[0])} at {number(across[0])} "
        f"to {say(up[-1])} at {number(across[-1])}"
        for label, (across, up) in points.items()
    )
    picture.alt = one_line(f"{heading.get('caption') or ''} {alt}.").strip()
    return picture


def line_look(i: int) -> dict[str, Any]:
    """Colour, dashes and marker of line `i` of a chart."""
    return {"color": LINES[i % 8], "linestyle": LINE_STYLES[i % 4], "marker": MARKERS[i % 8]}


def in_words(times: str, value: float) -> str:
    """A ratio as one says it: `twice as long`, `10 times as long`, `half as long`."""
    if not value:
        return "0"
    said = {1.0: "just", 2.0: "twice", 0.5: "half"}
    return f"{said.get(round(value, 3), f'{number(value)} times')} {times}"


def chart(height: float, left: float, *, title: str | None = None, caption: str | None = None) -> tuple[Picture, Axes]:
    """An empty chart, `height` without its caption; `left`: the part of its width in front of the axis."""
    rows = wrapped(drawable(caption), WIDTH - 2 * MARGIN, CAPTION) if caption else []
    below = len(rows) * CAPTION * 1.75 + (10 if rows else 0)
    whole = height + below
    picture = Picture(WIDTH, whole)
    axes = picture.add_axes((left, (54 + below) / whole, 0.97 - left, (height - (98 if title else 68)) / whole))
    for i, row in enumerate(rows):
        at = MARGIN / WIDTH, (below - 4 - i * CAPTION * 1.75) / whole
        picture.text(*at, row, fontsize=CAPTION, color=INK, va="top", **FONT)
    if title:
        axes.set_title(drawable(title), fontsize=11, fontweight="bold", loc="left", **FONT)
    return picture, axes


def finish(axes: Axes, x: str, y: str, every: tuple[str, str] | None = None) -> None:
    """Grid, labels and legend as all charts have them. `every`: of axes by factors, what one grid line is to the next."""
    notes = [each and f"(each grid line: {each})" for each in every or ("", "")]
    axes.grid(color=GRID, alpha=0.3, linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8.5, colors=INK, labelfontfamily="DejaVu Sans")
    axes.set_xlabel(f"{drawable(x)}  {notes[0]}".rstrip(), fontsize=9, **FONT)
    axes.set_ylabel(f"{drawable(y)}\n{notes[1]}".rstrip(), fontsize=9, **FONT)
    if len(axes.get_legend_handles_labels()[0]) > 1:
        for entry in axes.legend(frameon=False, prop={"family": "DejaVu Sans", "size": 8.5}).get_texts():
            entry.set_parse_math(False)


def by_factors(axes: Axes, name: str, values: Sequence[float]) -> str:
    """Make the axis "x" or "y" logarithmic, with plain numbers; returns what a grid line is to the one before."""
    base = 2 if max(values) <= 2.0**MOST_FACTORS * min(values) else 10
    first, last = floor(log(min(values), base) + 1e-9), ceil(log(max(values), base) - 1e-9)
    last = max(last, first + 1)  # at least two lines are needed to see how far a factor is
    step = ceil((last - first) / MOST_FACTORS)
    axes.set(**{f"{name}scale": "log", f"{name}lim": (float(base) ** (first - 0.1), float(base) ** (last + 0.1))})
    axis = axes.xaxis if name == "x" else axes.yaxis
    axis.set_major_locator(FixedLocator([float(base) ** i for i in range(first, last + 1, step)]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(tick))
    return "twice as much" if base**step == 2 else f"{number(base**step)} times as much"


def tick(value: float, place: int | None = None) -> str:
    """A number of an axis: 1, 10, 1,000, never 10³."""
    whole = abs(value - round(value)) < 1e-6 * abs(value)
    return number(float(round(value) if whole else f"{value:.6g}"))


GIGA = 1e9
SIGNS = {"EXTEND": "s", "DECODE": "o"}
Measured = tuple[str, float, float, float]


def roofline(
    measured: Sequence[Measured] | Mapping[str, Sequence[Measured]],
    *,
    flop_per_second: float,
    bytes_per_second: float,
    **heading: Unpack[Heading],
) -> Picture:
    """Measured passes `(label, flop, bytes, seconds)` beneath the roof of a machine: the rate that it can reach at most.

    Across: how many arithmetic operations (flop) a pass makes for each byte that it reads. Up: how many it makes in a
    second. Where the roof rises, the memory sets the limit (`bytes_per_second`), where it is level, the arithmetic does
    (`flop_per_second`). A label that begins with EXTEND or DECODE has that pass's colour. `{name: measurements}`: a line
    through those of each name, such as one per number of rows; the labels are written beneath the slowest.
    """
    lined = isinstance(measured, Mapping)
    series = measured if isinstance(measured, Mapping) else {"": measured}
    everything = [each for of in series.values() for each in of]
    across = [flop / size for _, flop, size, _ in everything]
    rates = [flop / seconds / GIGA for _, flop, _, seconds in everything]

    def roof(x: float) -> float:
        return min(flop_per_second, x * bytes_per_second) / GIGA

    ridge = flop_per_second / bytes_per_second
    low, high = min(*across, ridge) / 3, max(*across, ridge) * 4
    bottom, top = min(*rates, roof(low)) / 1.3, max(*rates, flop_per_second / GIGA) * 2.2
    with default_settings():
        picture, axes = chart(420, 0.1, **heading)
        every = by_factors(axes, "x", [low, high]), by_factors(axes, "y", [bottom * 1.3, top])
        axes.set(xlim=(low, high), ylim=(bottom, top))
        axes.plot([low, ridge, high], [roof(low), roof(ridge), roof(high)], color=INK, linewidth=2.2)
        axes.fill_between(
            [low, ridge, high], [roof(low), roof(ridge), roof(high)], top, color="#efefef", linewidth=0, zorder=0
        )
        level = f"arithmetic is the limit: {number(flop_per_second / GIGA)} billion operations per second"
        _note(axes, level, (high, roof(high)), (-6, 7), ha="right", va="bottom")
        start, end = axes.transData.transform([(low, roof(low)), (ridge, roof(ridge))])
        slope = {"rotation": degrees(atan2(end[1] - start[1], end[0] - start[0])), "rotation_mode": "anchor"}
        rises = f"memory is the limit: {number(bytes_per_second / GIGA)} GB per second"
        middle = (low * ridge) ** 0.5
        _note(axes, rises, (middle, roof(middle)), (-5, 8), ha="center", va="bottom", **slope)
        slowest: dict[str, tuple[float, float]] = {}
        for i, (name, of) in enumerate(series.items()):
            points = {label: (flop / size, flop / seconds / GIGA) for label, flop, size, seconds in of}
            if lined:
                axes.plot(
                    *zip(*points.values(), strict=True), label=drawable(name), linewidth=1.4, zorder=4, **line_look(i)
                )
                for label, point in points.items():
                    slowest[label] = min(slowest.get(label, point), point, key=lambda each: each[1])
                continue
            for label, (x, rate) in points.items():
                kind = label.split()[0].strip(",:") if label.split() else ""
                look: dict[str, Any] = {
                    "color": PHASE_STYLES.get(kind.lower(), BARS[0]).face,
                    "markeredgecolor": INK,
                    "markersize": 9,
                }
                axes.plot([x, x], [rate, roof(x)], color=MUTED, linewidth=1, linestyle=":")
                axes.plot([x], [rate], SIGNS.get(kind, "D"), zorder=4, gid=f"pass {label}", **look)
                side = "right" if x > (low * high) ** 0.5 else "left"
                said = f"{drawable(label)}: {percent(rate, roof(x))} of the roof"
                _note(axes, said, (x, rate), (9, -11 if side == "right" else -4), ha=side, va="top")
        for label, point in slowest.items():
            _note(axes, drawable(label), point, (0, -9), ha="center", va="top")
        across_is = f"arithmetic operations for each byte read{' or written' * lined}"
        finish(axes, across_is, "billion operations per second", every)
    parts = []
    for name, of in series.items():
        for label, flop, size, seconds in of:
            x, rate = flop / size, flop / seconds / GIGA
            amount = "" if lined else f"{num_bytes(size)} in {duration(seconds)}, "
            parts.append(
                f"{f'{name}, ' if lined else ''}{label}: {number(x)} operations per byte, {amount}{number(rate)} billion "
                f"operations per second, {percent(rate, roof(x))} of the roof "
                f"({'memory' if x < ridge else 'arithmetic'} is the limit)"
            )
    limits = f"{number(bytes_per_second / GIGA)} GB and {number(flop_per_second / GIGA)} billion operations per second"
    said = f"{heading.get('caption') or ''} Roof of this machine: {limits}. {'; '.join(parts)}."
    picture.alt = one_line(said).strip()
    return picture


def _note(axes: Axes, words: str, at: tuple[float, float], offset: tuple[float, float], **look: Any) -> None:
    behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.7}
    look |= FONT | {"fontsize": 8.5, "color": INK, "zorder": 5}
    axes.annotate(words, at, offset, textcoords="offset points", bbox=behind, **look)
