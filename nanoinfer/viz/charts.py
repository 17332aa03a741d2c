"""bars and lines: plain charts of measured numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from nanoinfer.viz.palette import GRID, INK, LINES, MUTED, REQUESTS, ROLES
from nanoinfer.viz.picture import WIDTH, Picture, default_settings
from nanoinfer.viz.sheet import SMALL, Sheet, drawable, text_width
from nanoinfer.viz.words import count, expect_type, finite, number, one_line, ratio

LINE_STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def bars(
    values: Mapping[str, float] | Mapping[str, Mapping[str, float]],
    *,
    unit: str,
    title: str | None = None,
    compare: str | None = None,
    line_at: float | None = None,
) -> Picture:
    """One bar per label, its number in `unit` at its end; with `compare="label"` also its ratio to that bar.

    `{group: {label: number}}` draws the bars of a group together, the same colour for the same label. `line_at`: a dashed
    line across all bars at that value, such as 1 for ratios. Raises ValueError for no values, negative or infinite ones,
    and a `compare` that is no label or is 0 (there is none in groups).
    """
    groups = _grouped(values)
    numbers = {f"{group}, {label}" if group else label: v for group, of in groups.items() for label, v in of.items()}
    line_at = None if line_at is None else finite("line_at", line_at)
    for name, value in (*((f"values[{label!r}]", v) for label, v in numbers.items()), ("line_at", line_at or 0.0)):
        if value < 0:
            raise ValueError(f"{name}={value}: must be finite and not negative")
    if compare is not None and ("" not in groups or not numbers.get(compare)):
        raise ValueError(f"compare={compare!r}: must be one of {', '.join(numbers)}, with a value above 0")
    base = numbers[compare] if compare is not None else None
    texts = {
        label: f"{number(value)} {unit}" + ("" if base is None or label == compare else f"  ({ratio(value / base)}×)")
        for label, value in numbers.items()
    }
    sheet = Sheet(title)
    labels = list(dict.fromkeys(label for labelled in groups.values() for label in labelled))
    beside = labels if "" in groups else list(groups)
    gutter = min(max(text_width(drawable(label)) for label in beside) + 14, 280)
    x0 = sheet.left + gutter
    room = sheet.right - x0 - max(text_width(text) for text in texts.values()) - 14
    longest = max(*numbers.values(), line_at or 0.0) or 1.0
    sheet.y += 2
    top = sheet.y
    height, pitch = (22, 30) if "" in groups else (18, 20)
    for group, labelled in groups.items():
        if group:
            sheet.text(x0 - 8, sheet.y + pitch * len(labelled) / 2, group, ha="right", width=gutter - 8)
        for label, value in labelled.items():
            if not group:
                sheet.text(x0 - 8, sheet.y + height / 2, label, ha="right", width=gutter - 8)
            style = REQUESTS[2 if label == compare else 0] if not group else _GROUP_STYLES[labels.index(label) % 4]
            name = f"{group}, {label}" if group else label
            sheet.rect(x0, sheet.y, room * value / longest, height, style, name=f"bar {name}")
            sheet.text(x0 + room * value / longest + 7, sheet.y + height / 2, texts[name])
            sheet.y += pitch
        sheet.y += 10 if group else 0
    sheet.line([x0, x0], [top - 4, sheet.y - 4], colour=MUTED)
    if line_at is not None:
        x = x0 + room * line_at / longest
        sheet.line([x, x], [top - 4, sheet.y + 2], colour=INK, line=1.4, style="--")
        sheet.text(x, sheet.y + 10, number(line_at), size=SMALL, ha="center", colour=INK)
        sheet.y += 20
    if "" not in groups:
        sheet.y += 2
        sheet.legend([(_GROUP_STYLES[i % 4], label) for i, label in enumerate(labels)])
    if compare is not None:
        sheet.y += 2
        sheet.caption(f"In brackets: ratio to {compare}.", size=SMALL)
    alt = ", ".join(f"{label}: {text.replace('  ', ' ')}" for label, text in texts.items())
    return sheet.picture(f"{alt}{f', ratios to {compare}' if compare else ''}.")


_GROUP_STYLES = (ROLES["in_use"], REQUESTS[7], REQUESTS[1], REQUESTS[2])  # of the labels within a group


def _grouped(values: Mapping[str, float] | Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """`{group: {label: value}}`; values without groups are those of group ""."""
    expect_type("values", values, Mapping)
    nested = [value for value in values.values() if isinstance(value, Mapping)]
    if nested and len(nested) < len(values):
        raise ValueError("values: some are groups and some numbers; must be either")
    given: Mapping[str, Any] = values if nested else {"": values}
    groups = {str(group): {str(k): finite(f"values[{k!r}]", v) for k, v in of.items()} for group, of in given.items()}
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
) -> Picture:
    """One line per label through its points `(xs, ys)`; `x`, `y`: what the axes say. `log`: both logarithmic.

    Raises ValueError for no series, for an empty one, lengths that differ, and with `log` numbers that are not positive.
    """
    expect_type("series", series, Mapping)
    if not series:
        raise ValueError("series: must have at least one")
    points: dict[str, tuple[list[float], list[float]]] = {}
    for label, given in series.items():
        name = f"series[{label!r}]"
        try:
            xs, ys = map(list, given)
        except (TypeError, ValueError):
            raise ValueError(f"{name}: must be (xs, ys), two lists of numbers") from None
        points[str(label)] = across, up = [finite(name, v) for v in xs], [finite(name, v) for v in ys]
        if not across or len(across) != len(up):
            raise ValueError(f"{name}: {len(across)} xs and {len(up)} ys; must be as many, at least 1")
        if log and min(across + up) <= 0:
            raise ValueError(f"{name}: {number(min(across + up))}: with log, numbers must be above 0")
    with default_settings():
        picture = _plot(points, x, y, title, log)
    picture.alt = f"{y} over {x}: " + "; ".join(
        f"{label}, {count(len(across), 'point')}, from {number(up[0])} at {number(across[0])} "
        f"to {number(up[-1])} at {number(across[-1])}"
        for label, (across, up) in points.items()
    )
    picture.alt = one_line(f"{picture.alt}.")
    return picture


def _plot(
    points: Mapping[str, tuple[list[float], list[float]]], x: str, y: str, title: str | None, log: bool
) -> Picture:
    picture = Picture(WIDTH, 380)
    axes = picture.add_axes((0.09, 0.14, 0.88, 0.74 if title else 0.82))
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
    if log:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))  # few decades need numbers between the powers
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_formatter(FuncFormatter(_tick))
        axes.yaxis.set_major_formatter(FuncFormatter(_tick))
    else:
        axes.set_ylim(bottom=min(0, *(v for _, up in points.values() for v in up)))
    axes.grid(color=GRID, alpha=0.3, linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8.5, colors=INK, labelfontfamily="DejaVu Sans")
    axes.set_xlabel(drawable(x), fontsize=9, parse_math=False, fontfamily="DejaVu Sans")
    axes.set_ylabel(drawable(y), fontsize=9, parse_math=False, fontfamily="DejaVu Sans")
    if title:
        axes.set_title(
            drawable(title), fontsize=11, fontweight="bold", loc="left", parse_math=False, fontfamily="DejaVu Sans"
        )
    if len(points) > 1:
        legend = axes.legend(frameon=False, prop={"family": "DejaVu Sans", "size": 8.5})
        for text in legend.get_texts():
            text.set_parse_math(False)
    return picture


def _tick(value: float, place: int | None = None) -> str:
    return number(value)
