"""roofline: does a pass wait for memory or for arithmetic? Measured here, and bounded for two accelerators."""

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from nanoinfer.cache.memory_pool import ReqToTokenPool
from nanoinfer.model.attention import select_attention_backend
from nanoinfer.model.attention.base import wanted_features
from nanoinfer.model.loader import LoadedModel
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.viz.palette import PHASE_STYLES
from nanoinfer.viz.words import count, num_bytes
from notebooks.course.explore import Control, Explorable, Frame, Lines, Mark, Number, Numbers, Series
from notebooks.course.explore.panels.base import Panel

TOKENS = (1, 2, 4, 8, 16, 32, 64, 128)
CONTEXT = 512  # tokens that each request of a DECODE pass has already
REPEATS = 3
TIE = 1.2  # times as long, up to which memory and arithmetic are said to take about as long
BIG = 2048  # rows and columns of the matrices whose product measures arithmetic
DECODE, EXTEND = "DECODE", "EXTEND"


@dataclass(frozen=True)
class Machine:
    """`bandwidth` in bytes per second, `flops` in floating-point operations per second, `item` in bytes per number."""

    name: str
    bandwidth: float
    flops: float
    item: int

    @property
    def ridge(self) -> float:
        """Operations per byte from which on arithmetic is the limit, not memory."""
        return self.flops / self.bandwidth

    def roof(self, intensity: float) -> float:
        """Operations per second that are possible with so many operations per byte."""
        return min(self.flops, self.bandwidth * intensity)


# Dense bfloat16 on tensor cores, without sparsity, and memory bandwidth.
# NVIDIA A100 Tensor Core GPU data sheet (A100 80GB SXM): 312 TFLOPS, 2,039 GB/s.
# NVIDIA H100 Tensor Core GPU data sheet (H100 SXM): 1,979 TFLOPS with sparsity, half of it without; 3.35 TB/s.
ACCELERATORS = (
    Machine("NVIDIA A100 80GB SXM", 2039e9, 312e12, 2),
    Machine("NVIDIA H100 SXM", 3.35e12, 989e12, 2),
)


@dataclass(frozen=True)
class Work:
    """What a pass has to do at least: operations, and numbers that are read and written (weights and K/V)."""

    flops: float
    numbers: float

    def intensity(self, machine: Machine) -> float:
        return self.flops / (self.numbers * machine.item)

    def seconds(self, machine: Machine) -> tuple[float, float]:
        """For the memory alone, and for the arithmetic alone."""
        return self.numbers * machine.item / machine.bandwidth, self.flops / machine.flops


def roofline(
    model: LoadedModel,
    bandwidth: float | None = None,
    flops: float | None = None,
    tokens: Sequence[int] = TOKENS,
    repeats: int = REPEATS,
    machine: str = "this CPU",
) -> Explorable:
    """DECODE and EXTEND passes of `model` over T tokens, timed now, in the roofline of this CPU and of ACCELERATORS.

    `bandwidth` (bytes/s) and `flops` (operations/s) of this machine, which the page calls `machine`; what is None is
    measured. The model's weights should be larger than the processor's caches, as those of `random_model` mostly
    are. ValueError for no tokens, or more than the model's context.
    """
    if not tokens or min(tokens) < 1 or max(max(tokens), CONTEXT + 1) > model.max_context_len:
        raise ValueError(f"tokens={tuple(tokens)}: must be in 1..{model.max_context_len}, the model's context")
    item = torch.empty(0, dtype=model.dtype).element_size()
    weights = int(work(model, DECODE, 1).numbers) * item
    cpu = Machine(machine, bandwidth or measured_bandwidth(weights), flops or measured_flops(model.dtype), item)
    timed = {(mode, t): seconds(model, mode, t, repeats) for mode in (DECODE, EXTEND) for t in tokens}
    machines = (cpu, *ACCELERATORS)
    frames = {
        (i, j): _frame(model, machines, machines[i], tokens, tokens[j], timed)
        for i, j in itertools.product(range(len(machines)), range(len(tokens)))
    }
    names = [each.name for each in machines]
    controls = [
        Control("tokens", "tokens in the pass (T)", list(tokens), start=len(tokens) - 2),  # where they are apart
        Control("machine", "machine", names),
    ]
    return Explorable(
        "Does a pass wait for memory or for arithmetic?",
        "Under the slope of its roof, a machine waits for bytes; under the flat part, it waits for arithmetic. "
        "Put more tokens into one pass and watch the two large points move.",
        controls,
        {(j, i): frame for (i, j), frame in frames.items()},
        height=1340,
        source="Passes of a real model, timed on one CPU; for the other machines, what their data sheets allow (bfloat16).",
    )


def work(model: LoadedModel, mode: str, tokens: int) -> Work:
    """EXTEND: one prompt of so many tokens. DECODE: as many requests, with one new token each after CONTEXT others.

    Every weight is read once, and so is each token's K/V, which is also written for the new ones; what stays in a
    processor's cache (activations) is left out. A product with a weight is two operations per token. What follows attention
    in the last layer is computed only for tokens whose logits are wanted: the last of a prompt.
    """
    config = model.config
    heads, kv_heads = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    before = config.hidden_size * (heads + 2 * kv_heads)  # of a layer's attention: query, key, value
    after = config.hidden_size * (heads + 3 * config.intermediate_size)
    layer = before + after
    head = config.vocab_size * config.hidden_size
    layers = config.num_hidden_layers
    pairs = tokens * (CONTEXT + 1) if mode == DECODE else tokens * (tokens + 1) // 2  # query, key
    read = tokens * (CONTEXT + 1) if mode == DECODE else tokens
    rows = tokens if mode == DECODE else 1  # whose logits are wanted
    weights = tokens * (layers * layer - after) + rows * (after + head)
    flops = 2 * weights + 4 * pairs * heads * layers
    return Work(flops, layers * layer + head + (read + tokens) * 2 * kv_heads * layers)


def seconds(model: LoadedModel, mode: str, tokens: int, repeats: int = REPEATS) -> float:
    """The shortest time of such a pass, which was disturbed least: run by a ModelRunner over pools of its own."""
    rows, width = (tokens, CONTEXT + 1) if mode == DECODE else (1, tokens)
    req_to_token_pool = ReqToTokenPool(rows, width)
    req_to_token_pool.req_to_token.copy_(torch.arange(rows * width).view(rows, width))
    backend = select_attention_backend("auto", model.dtype, model.device, wanted_features(model.model))
    runner = ModelRunner(model.model, req_to_token_pool, model.new_kv_pool(rows * width), backend)
    token_ids = torch.arange(tokens) % model.config.vocab_size
    lens = [width] * rows
    newest = [row * width + width - 1 for row in range(rows)]

    def run() -> None:
        if mode == DECODE:
            runner.forward_decode(token_ids, range(rows), lens, None, newest)
        else:
            runner.forward_extend(token_ids, [0], lens, [0], range(tokens))

    return _fastest(run, repeats)


def measured_bandwidth(size: int, repeats: int = REPEATS) -> float:
    """Bytes per second at which this CPU reads `size` bytes: as many as a pass does, so caches help both alike."""
    block = torch.ones(max(size // 4, 1))
    return block.nbytes / _fastest(lambda: block.sum(), repeats)


def measured_flops(dtype: torch.dtype, size: int = BIG, repeats: int = REPEATS) -> float:
    """Operations per second of a product of two `size` × `size` matrices on this CPU."""
    a, b = torch.ones(2, size, size, dtype=dtype)
    return 2 * size**3 / _fastest(lambda: a @ b, repeats)


def _fastest(run: Callable[[], object], repeats: int) -> float:
    run()  # allocates, and fills the caches
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def _frame(
    model: LoadedModel,
    machines: Sequence[Machine],
    machine: Machine,
    tokens: Sequence[int],
    chosen: int,
    timed: dict[tuple[str, int], float],
) -> Frame:
    cpu = machines[0]
    works = {mode: work(model, mode, chosen) for mode in (DECODE, EXTEND)}
    speeds = {
        mode: each.flops / timed[mode, chosen] if machine is cpu else machine.roof(each.intensity(machine))
        for mode, each in works.items()
    }
    marks = [
        Mark(round(works[mode].intensity(machine), 4), _rounded(speed / 1e9), mode, of=len(machines) + i)
        for i, (mode, speed) in enumerate(speeds.items())
    ]
    panels: list[Panel] = [_chart(model, machines, machine, tokens, timed, marks)]
    for mode, each in works.items():
        panels.append(_numbers(mode, chosen, each, machine, timed[mode, chosen] if machine is cpu else None))
    said = _sentence(works, machine, chosen)
    return Frame(panels, said if machine is cpu else said + _flat_from(model, machine))


def _chart(
    model: LoadedModel,
    machines: Sequence[Machine],
    machine: Machine,
    tokens: Sequence[int],
    timed: dict[tuple[str, int], float],
    marks: Sequence[Mark],
) -> Lines:
    low, high = 0.25, 1000.0
    series = []
    for each in machines:
        corners = [(x, _rounded(each.roof(x) / 1e9)) for x in (low, min(max(each.ridge, low), high), high)]
        series.append(Series(each.name, corners, colour=0, pale=each is not machine))
    for mode, colour in ((DECODE, 1), (EXTEND, 2)):
        done = [(work(model, mode, t), timed[mode, t]) for t in tokens]
        points = [(round(w.intensity(machines[0]), 4), _rounded(w.flops / s / 1e9)) for w, s in done]
        series.append(
            Series(
                f"{mode} passes on {machines[0].name}",
                points,
                dots=True,
                squares=mode == EXTEND,
                colour=colour,
                label_at=None,
                face=PHASE_STYLES[mode.lower()].face,
            )
        )
    floor = min(y for each in series for _, y in each.points)
    return Lines(
        "Speed of a pass, by how much arithmetic it does for each byte",
        "operations per byte that is moved",
        "billions of operations per second",
        series,
        (low, high),
        (10 ** math.floor(math.log10(floor)), 5e6),
        marks,
        log_x=True,
        log_y=True,
        note="A line is the roof of a machine: what it can do at most. Both axes are logarithmic.",
    )


def _numbers(mode: str, tokens: int, each: Work, machine: Machine, measured: float | None) -> Numbers:
    memory, arithmetic = each.seconds(machine)
    decode = f"{count(tokens, 'request')} of {CONTEXT} tokens, one more{' each' if tokens > 1 else ''}"
    what = decode if mode == DECODE else f"{count(tokens, 'token')} of one prompt"
    numbers = [
        Number("bytes to move, at least", num_bytes(each.numbers * machine.item)),
        Number("operations for each byte", _round(each.intensity(machine))),
        Number("time for the bytes alone", _time(memory), strong=memory >= arithmetic),
        Number("time for the arithmetic alone", _time(arithmetic), strong=memory < arithmetic),
        Number("time", f"{_time(measured)}, measured" if measured else f"{_time(max(memory, arithmetic))} or more"),
    ]
    return Numbers(f"{mode}: {what}", numbers)


def _sentence(works: dict[str, Work], machine: Machine, tokens: int) -> str:
    limits = {mode: _limit(each.intensity(machine) / machine.ridge) for mode, each in works.items()}
    name = f"an {machine.name}" if machine in ACCELERATORS else machine.name
    said = f"{name[0].upper()}{name[1:]} can do {machine.ridge:.0f} operations in the time it takes to move one byte. "
    decode, extend = (_round(works[mode].intensity(machine)) for mode in (DECODE, EXTEND))
    if limits[DECODE] == limits[EXTEND]:
        both = {
            "memory": "both wait for memory",
            "both": "both wait about as long for memory as for arithmetic",
            "arithmetic": "for both, arithmetic is the limit",
        }[limits[DECODE]]
        return said + f"With T = {tokens}, DECODE does {decode} per byte and EXTEND {extend}: {both}."
    waits = {
        "memory": "waits for memory",
        "both": "waits about as long for memory as for arithmetic",
        "arithmetic": "is limited by arithmetic",
    }
    return said + (
        f"With T = {tokens}, DECODE does {decode} per byte and {waits[limits[DECODE]]}; "
        f"EXTEND does {extend} and {waits[limits[EXTEND]]}."
    )


def _limit(ratio: float) -> str:
    """What a pass waits for that takes `ratio` times as long for arithmetic as for memory; up to a fifth more is a tie."""
    return "both" if 1 / TIE < ratio < TIE else "memory" if ratio < 1 else "arithmetic"


def _rounded(value: float) -> float:
    """To four digits, however small it is."""
    return float(f"{value:.4g}")


def _flat_from(model: LoadedModel, machine: Machine) -> str:
    """From which EXTEND on a machine is limited by arithmetic."""
    lengths = (2**power for power in range(model.max_context_len.bit_length()))
    enough = next((t for t in lengths if work(model, EXTEND, t).intensity(machine) >= machine.ridge), None)
    if enough is None:
        return f" No prompt of this model is long enough: that would take {machine.ridge:.0f} operations per byte."
    return f" It takes an EXTEND of about {enough} tokens to be limited by its arithmetic."


def _round(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def _time(value: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"
