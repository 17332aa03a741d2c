"""lanes, kernel_times: what happened when, on an axis of time: threads or requests side by side, or kernels."""

from collections.abc import Mapping, Sequence
from math import ceil, log10
from typing import NamedTuple

from matplotlib.ticker import MaxNLocator

from nanoinfer.viz.lettering import SMALL, TINY, drawable, text_width
from nanoinfer.viz.palette import BARS, GRID, INK, MUTED, ROLES, Style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Look, Sheet
from nanoinfer.viz.words import count, number, percent

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
    within: tuple[float, float] | None = None,
    title: str | None = None,
    caption: str | None = None,
) -> Picture:
    """`spans`: (lane, kind, start, end), times in `unit`. Lanes are in the order in which they first appear, and each kind
    has its colour; the kind "waiting" is always light. `within`: where the scale begins and ends, so that several pictures
    can be compared.

    There may be 4 other kinds.
    """
    checked = [Span(*each) for each in spans]
    names = list(dict.fromkeys(each.lane for each in checked))
    kinds = list(dict.fromkeys(each.kind for each in checked))
    others = [kind for kind in kinds if kind != WAITING]
    styles = {WAITING: ROLES["hidden"]} | {kind: BARS[i] for i, kind in enumerate(others)}
    first, last = min(each.start for each in checked), max(each.end for each in checked)
    length = last - first
    first, last = (first, last) if within is None else within
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


PRODUCT, ATTENTION, OTHER, OUTSIDE = "products with weights", "attention", "other kernels", "outside the kernels"
STYLES: dict[str, Style] = {PRODUCT: BARS[0], ATTENTION: BARS[3], OTHER: BARS[1], OUTSIDE: BARS[2]}
BAR, BAR_PITCH = 34.0, 74.0  # of a bar; from one bar to the next
TICKS = 8  # at most

Call = tuple[str, str, float, float]  # kernel, module, begin and end in seconds


def kernel_times(
    passes: Mapping[str, tuple[Sequence[Call], float]], *, title: str | None = None, caption: str | None = None
) -> Picture:
    """One bar per pass, all on one axis of time: each kernel from when to when, and what is outside them.

    `passes`: `{label: (calls, seconds)}`, a call being `(kernel, module, begin, end)`, in seconds after the pass began.
    Calls of one layer have a line beneath them.
    """
    longest = max(seconds for _, seconds in passes.values())
    sheet = Sheet(title, caption=caption)
    sheet.y += 6
    said, used = [], dict.fromkeys(STYLES, False)
    for label, (calls, seconds) in passes.items():
        sums = _sums(calls, seconds)
        words = (
            f"{time_in_words(seconds)}: {percent(seconds - sums[OUTSIDE], seconds)} in {count(len(calls), 'kernel')}"
        )
        sheet.text(sheet.left, sheet.y + 6, label, weight="bold", width=sheet.right - sheet.left - 220)
        sheet.text(sheet.right, sheet.y + 6, words, size=SMALL, ha="right")
        _bar(sheet, label, calls, seconds, longest)
        used |= {kind: True for kind, spent in sums.items() if spent}
        shares = ", ".join(f"{percent(spent, seconds)} {kind}" for kind, spent in sums.items() if spent)
        said.append(f"{label}: {time_in_words(seconds)} with {count(len(calls), 'kernel')}, {shares}")
        sheet.y += BAR_PITCH
    _axis(sheet, longest)
    sheet.legend([(STYLES[kind], kind) for kind in STYLES if used[kind]])
    return sheet.picture(f"{'; '.join(said)}.")


def kind_of(kernel: str) -> str:
    """Which of the kinds in STYLES a kernel is."""
    return PRODUCT if "linear" in kernel else ATTENTION if kernel.startswith("attention") else OTHER


def layer_of(module: str) -> str:
    """`3` of `model.layers.3.mlp`; "" outside the layers."""
    return module.partition("layers.")[2].partition(".")[0]


def time_in_words(seconds: float) -> str:
    """In milliseconds, or in microseconds below one of them."""
    return f"{number(1e3 * seconds)} ms" if seconds >= 1e-3 else f"{number(round(1e6 * seconds))} µs"


def _sums(calls: Sequence[Call], seconds: float) -> dict[str, float]:
    """The seconds of each kind. What is outside the kernels is the rest."""
    sums = dict.fromkeys(STYLES, 0.0)
    for kernel, _, begin, end in calls:
        sums[kind_of(kernel)] += end - begin
    sums[OUTSIDE] = max(0.0, seconds - sum(sums.values()))
    return sums


def _bar(sheet: Sheet, label: str, calls: Sequence[Call], seconds: float, longest: float) -> None:
    scale, y = (sheet.right - sheet.left) / longest, sheet.y + 16
    sheet.rect(sheet.left, y, seconds * scale, BAR, STYLES[OUTSIDE], name=f"outside {label}")
    layers: dict[str, tuple[float, float]] = {}
    # Other kernels last, and wide enough to be seen: the bars beside them must not hide them.
    for kernel, module, begin, end in sorted(calls, key=lambda call: kind_of(call[0]) == OTHER):
        x, width = sheet.left + begin * scale, max((end - begin) * scale, 0.15 if kind_of(kernel) == PRODUCT else 1.2)
        edge = "#ffffff" if width > 3 else None
        sheet.rect(x, y, width, BAR, STYLES[kind_of(kernel)], edge=edge, line=0.5, name=f"{kernel} {module}")
        part = module.rpartition(".")[2] if kind_of(kernel) == PRODUCT else kernel
        if text_width(part, TINY) < width - 4:
            colour = STYLES[kind_of(kernel)].text
            sheet.text(x + width / 2, y + BAR / 2, part, size=TINY, ha="center", colour=colour)
    for _, module, begin, end in calls:
        if layer := layer_of(module):
            layers[layer] = min(begin, layers.get(layer, (begin, end))[0]), end
    for layer, (begin, end) in layers.items():
        x0, x1 = sheet.left + begin * scale + 1, sheet.left + end * scale - 1
        sheet.line([x0, max(x0, x1)], [y + BAR + 5] * 2, colour=MUTED, line=1.4)
        words = f"layer {layer}"
        if text_width(words, TINY) > x1 - x0:
            words = layer
        if text_width(words, TINY) < x1 - x0:
            sheet.text((x0 + x1) / 2, y + BAR + 12, words, size=TINY, ha="center", colour=MUTED)


def _axis(sheet: Sheet, longest: float) -> None:
    """Time, in steps of 1, 2 or 5."""
    unit, name = (1e-3, "ms") if longest >= 2e-3 else (1e-6, "µs")
    rough = longest / unit / TICKS
    power = 10.0 ** ceil(log10(rough) - 1)
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    scale, y = (sheet.right - sheet.left) / longest, sheet.y + 2
    sheet.line([sheet.left, sheet.right], [y, y], colour=INK)
    for i in range(int(longest / unit / step) + 1):
        x = sheet.left + i * step * unit * scale
        sheet.line([x, x], [y, y + 4], colour=INK)
        words = f"{number(round(i * step, 9))} {name}"
        if x + text_width(words, SMALL) / 2 <= sheet.right:
            sheet.text(x, y + 12, words, size=SMALL, ha="left" if not i else "center")
    sheet.y += 30
