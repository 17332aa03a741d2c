"""lanes, kernel_times: what happened when, on an axis of time: threads or requests, and kernels."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Unpack

from matplotlib.ticker import MaxNLocator

from nanoinfer.viz.lettering import SMALL, TINY, text_width
from nanoinfer.viz.palette import BARS, GRID, INK, MUTED, ROLES, Style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Heading, Sheet
from nanoinfer.viz.words import count, duration, number, percent

WAITING = "waiting"  # a kind with a look of its own, the same in all pictures
HEIGHT, PITCH = 20.0, 28.0


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
    **heading: Unpack[Heading],
) -> Picture:
    """`spans`: (lane, kind, start, end), times in `unit`. Lanes are in the order in which they first appear, and each kind
    has its colour; the kind "waiting" is always light. There may be 4 other kinds.
    """
    checked = [Span(*each) for each in spans]
    names = list(dict.fromkeys(each.lane for each in checked))
    kinds = list(dict.fromkeys(each.kind for each in checked))
    others = [kind for kind in kinds if kind != WAITING]
    styles = {WAITING: ROLES["hidden"]} | {kind: BARS[i] for i, kind in enumerate(others)}
    first, last = min(each.start for each in checked), max(each.end for each in checked)
    sheet = Sheet(default_title=f"{count(len(names), 'lane')}, {count(len(checked), 'span')}", **heading)
    gutter = min(max(text_width(name) for name in (*names, unit)) + 14, 260)
    x0, top, bottom = sheet.left + gutter, sheet.y, sheet.y + PITCH * len(names)
    scale = (sheet.right - x0 - 10) / ((last - first) or 1.0)
    _axis(sheet, x0, scale, first, last, unit, bottom)
    for i, name in enumerate(names):
        sheet.text(x0 - 8, top + PITCH * (i + 0.5), name, ha="right", width=gutter - 8)
        sheet.line([x0, sheet.right - 10], [top + PITCH * (i + 0.5)] * 2, colour=GRID, line=0.5)
    for each in checked:
        y = top + PITCH * names.index(each.lane) + (PITCH - HEIGHT) / 2
        x, width = x0 + scale * (each.start - first), max(scale * (each.end - each.start), 0.8)
        edge = GRID if each.kind == WAITING else None
        sheet.rect(x, y, width, HEIGHT, styles[each.kind], edge=edge, name=f"{each.lane}, {each.kind}")
    sheet.y = bottom + 26
    sheet.legend([(styles[kind], kind) for kind in kinds])
    took: dict[str, dict[str, float]] = {name: {} for name in names}
    for each in checked:
        took[each.lane][each.kind] = took[each.lane].get(each.kind, 0.0) + each.end - each.start
    said = [f"{name}: {', '.join(f'{kind} {number(time)}' for kind, time in of.items())}" for name, of in took.items()]
    return sheet.picture(f"{number(last - first)} {unit} in all. {'; '.join(said)}.")


def _axis(sheet: Sheet, x0: float, scale: float, first: float, last: float, unit: str, bottom: float) -> None:
    """Time from x0 on, at `bottom`, with lines up to here."""
    values = MaxNLocator(8, steps=[1, 2, 5, 10]).tick_values(first, last) if last > first else [first]
    for at in values:
        if first - 1e-9 <= at <= last + 1e-9:
            x = x0 + scale * (at - first)
            sheet.line([x, x], [sheet.y, bottom], colour=GRID, line=0.5, style=":")
            sheet.text(x, bottom + 9, number(round(at, 9)), size=SMALL, ha="center", colour=MUTED)
    sheet.text(x0 - 8, bottom + 9, unit, size=SMALL, ha="right", colour=MUTED)
    sheet.line([x0, x0], [sheet.y, bottom], colour=INK)


PRODUCT, ATTENTION, OTHER, OUTSIDE = "products with weights", "attention", "other kernels", "outside the kernels"
STYLES: dict[str, Style] = {PRODUCT: BARS[0], ATTENTION: BARS[3], OTHER: BARS[1], OUTSIDE: BARS[2]}
BAR, BAR_PITCH = 34.0, 74.0  # of a bar; from one bar to the next

Call = tuple[str, str, float, float]  # kernel, module, begin and end in seconds


def kernel_times(passes: Mapping[str, tuple[Sequence[Call], float]], **heading: Unpack[Heading]) -> Picture:
    """One bar per pass, all on one axis of time: each kernel from when to when, and what is outside them.

    `passes`: `{label: (calls, seconds)}`, a call being `(kernel, module, begin, end)`, in seconds after the pass began.
    Calls of one layer have a line beneath them.
    """
    longest = max(seconds for _, seconds in passes.values())
    sheet = Sheet(**heading)
    x0, bottom = sheet.left + 26, sheet.y + BAR_PITCH * len(passes)
    scale = (sheet.right - x0) / longest
    unit, size = ("ms", 1e-3) if longest >= 2e-3 else ("µs", 1e-6)
    _axis(sheet, x0, scale * size, 0, longest / size, unit, bottom)
    said, used = [], set[str]()
    for label, (calls, seconds) in passes.items():
        sums = dict.fromkeys(STYLES, 0.0)
        for kernel, _, begin, end in calls:
            sums[_kind(kernel)] += end - begin
        sums[OUTSIDE] = max(0.0, seconds - sum(sums.values()))
        took, kernels = duration(seconds), count(len(calls), "kernel")
        words = f"{took}: {percent(seconds - sums[OUTSIDE], seconds)} in {kernels}"
        sheet.text(x0, sheet.y + 12, label, weight="bold", width=sheet.right - x0 - 220)
        sheet.text(sheet.right, sheet.y + 12, words, size=SMALL, ha="right")
        _bar(sheet, label, calls, seconds, x0, scale)
        shares = {kind: percent(spent, seconds) for kind, spent in sums.items() if spent}
        used |= shares.keys()
        said.append(f"{label}: {took} with {kernels}, {', '.join(f'{share} {kind}' for kind, share in shares.items())}")
        sheet.y += BAR_PITCH
    sheet.y = bottom + 26
    sheet.legend([(STYLES[kind], kind) for kind in STYLES if kind in used])
    return sheet.picture(f"{'; '.join(said)}.")


def _kind(kernel: str) -> str:
    return PRODUCT if "linear" in kernel else ATTENTION if kernel.startswith("attention") else OTHER


def _bar(sheet: Sheet, label: str, calls: Sequence[Call], seconds: float, x0: float, scale: float) -> None:
    y, layers = sheet.y + 22, dict[str, tuple[float, float]]()
    sheet.rect(x0, y, seconds * scale, BAR, STYLES[OUTSIDE], name=f"outside {label}")
    # Other kernels last, and wide enough to be seen: the bars beside them must not hide them.
    for kernel, module, begin, end in sorted(calls, key=lambda call: _kind(call[0]) == OTHER):
        kind = _kind(kernel)
        width = max((end - begin) * scale, 0.15 if kind == PRODUCT else 1.2)
        part, edge = module.rpartition(".")[2] if kind == PRODUCT else kernel, "#ffffff" if width > 3 else None
        place = x0 + begin * scale, y, width, BAR
        sheet.cell(*place, STYLES[kind], part, size=TINY, edge=edge, name=f"{kernel} {module}")
        if layer := module.partition("layers.")[2].partition(".")[0]:
            start, stop = layers.get(layer, (begin, end))
            layers[layer] = min(begin, start), max(end, stop)
    for layer, (begin, end) in layers.items():
        left, right = x0 + begin * scale + 1, x0 + end * scale - 1
        sheet.line([left, max(left, right)], [y + BAR + 5] * 2, colour=MUTED, line=1.4)
        words = f"layer {layer}" if text_width(f"layer {layer}", TINY) < right - left else layer
        if text_width(words, TINY) < right - left:
            sheet.text((left + right) / 2, y + BAR + 12, words, size=TINY, ha="center", colour=MUTED)
