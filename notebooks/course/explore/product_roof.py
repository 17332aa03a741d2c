"""product_roof: where a product of T tokens with a weight is beneath the roof, by T and by the bytes of a weight."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from nanoinfer.viz.words import num_bytes, number
from notebooks.course.explore.control import Control
from notebooks.course.explore.explorable import Explorable, Frame
from notebooks.course.explore.panels.bars import Bar, Bars
from notebooks.course.explore.panels.lines import Lines, Mark, Series
from notebooks.course.explore.panels.numbers import Number, Numbers
from notebooks.course.explore.roofline import ACCELERATORS, Machine

INPUTS, OUTPUTS = 1024, 2816  # of the product that notebook 12 writes
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
WIDTHS = {4.0: "float32", 2.0: "bfloat16", 1.0: "int8", 0.5: "int4"}  # bytes of a weight → its kind
CPU = Machine("one core of a CPU", 16e9, 175e9, 4)  # about what notebook 12 has measured
X_RANGE, Y_RANGE = (0.25, 1000.0), (1.0, 5e6)


@dataclass(frozen=True)
class Product:
    """x [tokens, INPUTS] times a weight [OUTPUTS, INPUTS], whose numbers have `width` bytes. The numbers of x and of the
    result have 4 bytes with float32, and 2 otherwise."""

    tokens: int
    width: float

    @property
    def operations(self) -> int:
        return 2 * self.tokens * INPUTS * OUTPUTS

    @property
    def bytes(self) -> float:
        """Every number once."""
        return INPUTS * OUTPUTS * self.width + self.tokens * (INPUTS + OUTPUTS) * (4 if self.width == 4 else 2)

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.operations / self.bytes

    def seconds(self, machine: Machine) -> tuple[float, float]:
        """For the bytes alone, and for the arithmetic alone."""
        return self.bytes / machine.bandwidth, self.operations / machine.flops


def busy_from(width: float, machine: Machine) -> int | None:
    """The smallest number of tokens with which arithmetic is the limit; None if there is none."""
    one, two = Product(1, width), Product(2, width)
    reading, multiplying = two.seconds(machine)
    more = (multiplying - one.seconds(machine)[1]) - (reading - one.seconds(machine)[0])  # of each further token
    behind = one.seconds(machine)[0] - one.seconds(machine)[1]
    if behind <= 0:
        return 1
    return 1 + math.ceil(behind / more) if more > 0 else None


def product_roof(machine: Machine | None = None, tokens: Sequence[int] = TOKENS) -> Explorable:
    """One product on `machine` (without one, on CPU) and on an accelerator, for each T and each kind of weights.

    ValueError for fewer than two numbers of tokens, or one below 1.
    """
    if len(tokens) < 2 or min(tokens) < 1:
        raise ValueError(f"tokens={tuple(tokens)}: must be at least two numbers of at least 1")
    machines = (machine or CPU, ACCELERATORS[-1])
    frames = {
        (i, j, k): _frame(Product(t, width), each, machines, tokens)
        for (i, t), (j, width), (k, each) in itertools.product(
            enumerate(tokens), enumerate(WIDTHS), enumerate(machines)
        )
    }
    controls = [
        Control("tokens", "tokens in the pass (T)", list(tokens)),
        Control(
            "width", "bytes of a weight", list(WIDTHS), labels=[f"{width:g} ({kind})" for width, kind in WIDTHS.items()]
        ),
        Control("machine", "machine", [each.name for each in machines]),
    ]
    return Explorable(
        "When do smaller weights make a product faster?",
        "Under the slope of the roof, a product waits for bytes; under its flat part, for arithmetic. "
        "Make the weights smaller, then put more tokens into the pass, and watch where the point goes.",
        controls,
        frames,
        height=1290,
        source=f"Computed for x [T, {INPUTS:,}] times a weight [{OUTPUTS:,}, {INPUTS:,}]: each number is read or written "
        "once, and nothing else takes time. The accelerator's limits are from its data sheet.",
    )


def _frame(product: Product, machine: Machine, machines: Sequence[Machine], tokens: Sequence[int]) -> Frame:
    times = product.seconds(machine)
    limited = times[0] > times[1]  # by memory
    longest = max(times)
    bars = [
        Bar(name, round(time / longest, 4), _time(time), look="highlight" if time == longest else "in-use")
        for name, time in zip(("reading and writing", "arithmetic"), times, strict=True)
    ]
    first = busy_from(product.width, machine)
    numbers = [
        Number("bytes", num_bytes(product.bytes)),
        Number("operations per byte", _short(product.intensity)),
        Number("time of the product, at least", _time(longest), strong=True),
        Number("arithmetic is the limit", "never" if first is None else f"from T = {first} on"),
    ]
    panels = [
        _chart(product, machine, machines, tokens),
        Bars("How long each of the two takes by itself", bars, 1, "The full bar is the limit of the product."),
        Numbers(f"T = {product.tokens}, {WIDTHS[product.width]} weights", numbers),
    ]
    said = (
        f"With T = {product.tokens} and {WIDTHS[product.width]} weights, the product does {_short(product.intensity)} "
        f"operations per byte. In the time that one byte takes, this machine can do {machine.ridge:.0f}. "
    )
    if limited:
        return Frame(panels, f"{said}So memory is the limit, and smaller weights make the product faster.")
    return Frame(panels, f"{said}So arithmetic is the limit, and smaller weights make the product no faster.")


def _chart(product: Product, machine: Machine, machines: Sequence[Machine], tokens: Sequence[int]) -> Lines:
    low, high = X_RANGE
    series = []
    for each in machines:
        corners = [(x, _rounded(each.roof(x) / 1e9)) for x in (low, min(max(each.ridge, low), high), high)]
        series.append(Series(each.name, corners, colour=0, pale=each is not machine))
    every = [Product(t, product.width) for t in tokens]
    points = [(_rounded(each.intensity), _rounded(machine.roof(each.intensity) / 1e9)) for each in every]
    label = f"{WIDTHS[product.width]} weights, T = {tokens[0]} to {tokens[-1]}"
    series.append(Series(label, points, dots=True, colour=1, label_at=None))
    at = (_rounded(product.intensity), _rounded(machine.roof(product.intensity) / 1e9))
    return Lines(
        "The fastest that the product can be",
        "operations per byte that is moved",
        "billions of operations per second",
        series,
        X_RANGE,
        Y_RANGE,
        [Mark(*at, f"T = {product.tokens}", of=len(series) - 1)],
        log_x=True,
        log_y=True,
        note="The roof is the same for all kinds of weights. It is higher for int8 where a processor multiplies bytes "
        "faster than floats.",
    )


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def _time(seconds: float) -> str:
    return f"{number(_rounded(1e6 * seconds))} µs"
