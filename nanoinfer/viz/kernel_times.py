"""kernel_times: a pass as a bar of kernels, on an axis of time, with what is before, between and after them."""

from collections.abc import Mapping, Sequence
from math import ceil, log10

from nanoinfer.viz.lettering import SMALL, TINY, text_width
from nanoinfer.viz.palette import BARS, INK, MUTED, Style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Sheet
from nanoinfer.viz.words import count, expect_type, finite, number, percent

PRODUCT, ATTENTION, OTHER, OUTSIDE = "products with weights", "attention", "other kernels", "outside the kernels"
STYLES: dict[str, Style] = {PRODUCT: BARS[0], ATTENTION: BARS[3], OTHER: BARS[1], OUTSIDE: BARS[2]}
HEIGHT, PITCH = 34.0, 74.0  # of a bar; from one bar to the next
TICKS = 8  # at most

Call = tuple[str, str, float, float]  # kernel, module, begin and end in seconds


def kernel_times(
    passes: Mapping[str, tuple[Sequence[Call], float]], *, title: str | None = None, caption: str | None = None
) -> Picture:
    """One bar per pass, all on one axis of time: each kernel from when to when, and what is outside them.

    `passes`: `{label: (calls, seconds)}`, a call being `(kernel, module, begin, end)`, in seconds after the pass began.
    Calls of one layer have a line beneath them. Raises ValueError for no passes, and for calls that are out of order or
    outside their pass.
    """
    expect_type("passes", passes, Mapping)
    if not passes:
        raise ValueError("passes: must have at least one")
    checked = {str(label): _checked(str(label), *given) for label, given in passes.items()}
    longest = max(seconds for _, seconds in checked.values())
    sheet = Sheet(title, caption=caption)
    sheet.y += 6
    said, used = [], dict.fromkeys(STYLES, False)
    for label, (calls, seconds) in checked.items():
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
        sheet.y += PITCH
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


def _checked(label: str, calls: Sequence[Call], seconds: float) -> tuple[list[Call], float]:
    name = f"passes[{label!r}]"
    if finite(name, seconds) <= 0:
        raise ValueError(f"{name}: takes {seconds} seconds; must be above 0")
    now, found = 0.0, list[Call]()
    for i, (kernel, module, begin, end) in enumerate(calls):
        if not now - 1e-9 <= finite(name, begin) <= finite(name, end) <= seconds + 1e-9:
            raise ValueError(
                f"{name}: call {i} is from {begin} to {end}; must be after the one before, up to {seconds}"
            )
        found.append((str(kernel), str(module), float(begin), float(end)))
        now = end
    return found, float(seconds)


def _sums(calls: Sequence[Call], seconds: float) -> dict[str, float]:
    """The seconds of each kind. What is outside the kernels is the rest."""
    sums = dict.fromkeys(STYLES, 0.0)
    for kernel, _, begin, end in calls:
        sums[kind_of(kernel)] += end - begin
    sums[OUTSIDE] = max(0.0, seconds - sum(sums.values()))
    return sums


def _bar(sheet: Sheet, label: str, calls: Sequence[Call], seconds: float, longest: float) -> None:
    scale, y = (sheet.right - sheet.left) / longest, sheet.y + 16
    sheet.rect(sheet.left, y, seconds * scale, HEIGHT, STYLES[OUTSIDE], name=f"outside {label}")
    layers: dict[str, tuple[float, float]] = {}
    # Other kernels last, and wide enough to be seen: the bars beside them must not hide them.
    for kernel, module, begin, end in sorted(calls, key=lambda call: kind_of(call[0]) == OTHER):
        x, width = sheet.left + begin * scale, max((end - begin) * scale, 0.15 if kind_of(kernel) == PRODUCT else 1.2)
        edge = "#ffffff" if width > 3 else None
        sheet.rect(x, y, width, HEIGHT, STYLES[kind_of(kernel)], edge=edge, line=0.5, name=f"{kernel} {module}")
        part = module.rpartition(".")[2] if kind_of(kernel) == PRODUCT else kernel
        if text_width(part, TINY) < width - 4:
            colour = STYLES[kind_of(kernel)].text
            sheet.text(x + width / 2, y + HEIGHT / 2, part, size=TINY, ha="center", colour=colour)
    for _, module, begin, end in calls:
        if layer := layer_of(module):
            layers[layer] = min(begin, layers.get(layer, (begin, end))[0]), end
    for layer, (begin, end) in layers.items():
        x0, x1 = sheet.left + begin * scale + 1, sheet.left + end * scale - 1
        sheet.line([x0, max(x0, x1)], [y + HEIGHT + 5] * 2, colour=MUTED, line=1.4)
        words = f"layer {layer}"
        if text_width(words, TINY) > x1 - x0:
            words = layer
        if text_width(words, TINY) < x1 - x0:
            sheet.text((x0 + x1) / 2, y + HEIGHT + 12, words, size=TINY, ha="center", colour=MUTED)


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
