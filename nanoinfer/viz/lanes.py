"""lanes: what happened when, side by side: one lane per thread or request, and time from left to right."""

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.ticker import MaxNLocator

from nanoinfer.viz.lettering import SMALL, drawable, text_width
from nanoinfer.viz.palette import BARS, GRID, INK, MUTED, ROLES, Style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Look, Sheet
from nanoinfer.viz.words import count, finite, number

WAITING = "waiting"  # a kind with a look of its own, the same in all pictures
HEIGHT, PITCH = 20.0, 28.0
MOST_LANES, MOST_KINDS = 24, 4


class Span(NamedTuple):
    """Something that took from `start` to `end`."""

    lane: str
    kind: str
    start: float
    end: float


def lanes(
    spans: Sequence[tuple[str, str, float, float]],
    *,
    unit: str,
    within: tuple[float, float] | None = None,
    title: str | None = None,
    caption: str | None = None,
) -> Picture:
    """`spans`: (lane, kind, start, end), times in `unit`. Lanes are in the order in which they first appear, and each kind
    has its colour; the kind "waiting" is always light. `within`: where the scale begins and ends, so that several pictures
    can be compared.

    Raises ValueError for no spans, one that ends before it starts or is not `within`, more than 24 lanes, and more than 4
    other kinds.
    """
    checked = [_checked(i, each) for i, each in enumerate(spans)]
    if not checked:
        raise ValueError("spans: must have at least one")
    names = list(dict.fromkeys(each.lane for each in checked))
    kinds = list(dict.fromkeys(each.kind for each in checked))
    styles = _styles(names, kinds)
    first, last = min(each.start for each in checked), max(each.end for each in checked)
    length = last - first
    if within is not None:
        if not within[0] <= first <= last <= within[1]:
            raise ValueError(f"within={within}: spans are from {number(first)} to {number(last)}")
        first, last = within
    sheet = Sheet(title, f"{count(len(names), 'lane')}, {count(len(checked), 'span')}", caption=caption)
    gutter = min(max(text_width(drawable(name)) for name in (*names, unit)) + 14, 260)
    x0, room = sheet.left + gutter, sheet.right - sheet.left - gutter - 10
    scale = room / ((last - first) or 1.0)
    top, bottom = sheet.y, sheet.y + PITCH * len(names)
    values = MaxNLocator(8).tick_values(first, last) if last > first else [first]
    ticks = [at for at in values if first - 1e-9 <= at <= last + 1e-9]
    for at in ticks:
        x = x0 + scale * (at - first)
        sheet.line([x, x], [top, bottom], colour=GRID, line=0.5, style=":")
        sheet.text(x, bottom + 9, number(round(at, 9)), size=SMALL, ha="center", colour=MUTED)
    sheet.text(x0 - 8, bottom + 9, unit, size=SMALL, ha="right", colour=MUTED)
    for i, name in enumerate(names):
        sheet.text(x0 - 8, top + PITCH * i + PITCH / 2, name, ha="right", width=gutter - 8)
        sheet.line([x0, x0 + room], [top + PITCH * (i + 0.5)] * 2, colour=GRID, line=0.5)
    for each in checked:
        y = top + PITCH * names.index(each.lane) + (PITCH - HEIGHT) / 2
        x, width = x0 + scale * (each.start - first), max(scale * (each.end - each.start), 0.8)
        edge = GRID if each.kind == WAITING else None
        name = f"{each.lane}, {each.kind}"
        sheet.rect(x, y, width, HEIGHT, styles[each.kind], edge=edge, line=0.5, over=True, name=name)
    sheet.line([x0, x0], [top, bottom], colour=INK)
    sheet.y = bottom + 26
    entries: list[tuple[Look, str]] = [(styles[kind], kind) for kind in kinds]
    sheet.legend(entries)
    return sheet.picture(_alt(checked, names, unit, length))


def _styles(names: Sequence[str], kinds: Sequence[str]) -> dict[str, Style]:
    others = [kind for kind in kinds if kind != WAITING]
    if len(names) > MOST_LANES:
        raise ValueError(f"spans: {len(names)} lanes; must be at most {MOST_LANES}")
    if len(others) > MOST_KINDS:
        raise ValueError(f"spans: {len(others)} kinds besides {WAITING!r}; must be at most {MOST_KINDS}")
    return {WAITING: ROLES["hidden"]} | {kind: BARS[i] for i, kind in enumerate(others)}


def _checked(i: int, given: tuple[str, str, float, float]) -> Span:
    try:
        lane, kind, start, end = given
    except (TypeError, ValueError):
        raise ValueError(f"spans[{i}]: must be (lane, kind, start, end), got {given!r}") from None
    span = Span(str(lane), str(kind), finite(f"spans[{i}] start", start), finite(f"spans[{i}] end", end))
    if span.end < span.start:
        raise ValueError(f"spans[{i}]: ends at {number(span.end)}, before its start at {number(span.start)}")
    return span


def _alt(spans: Sequence[Span], names: Sequence[str], unit: str, length: float) -> str:
    """Per lane and kind, how much time it took."""
    parts = []
    for name in names:
        took: dict[str, float] = {}
        for each in spans:
            if each.lane == name:
                took[each.kind] = took.get(each.kind, 0.0) + each.end - each.start
        parts.append(f"{name}: {', '.join(f'{kind} {number(time)}' for kind, time in took.items())}")
    return f"{number(length)} {unit} in all. {'; '.join(parts)}."
