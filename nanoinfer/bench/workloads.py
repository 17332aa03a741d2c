"""The workloads: lengths and arrivals are the same for every engine, round and seed; token ids differ by seed."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

Lengths = list[tuple[int, int]]  # per request: prompt tokens after the shared ones, tokens to generate

NUM_REQUESTS = 16
SHARED_PROMPT = 512
BUSY = "-busy"  # ends the name of a workload that is measured on a busy machine


@dataclass(frozen=True)
class Request:
    """A request with the token ids `prompt`. Exactly `new_tokens` are generated; it arrives after `arrival` seconds.
    `adapter`: the name of the adapter it uses, if any."""

    prompt: list[int]
    new_tokens: int
    arrival: float = 0.0
    adapter: str | None = None


@dataclass(frozen=True)
class Measure:
    """A workload's main figure: a key of `metrics.summary`, its name in tables, and whether more is better."""

    key: str
    label: str
    more_is_better: bool = True


OUTPUT_SPEED = Measure("output_tok_s", "output tok/s")
INPUT_SPEED = Measure("input_tok_s", "input tok/s")
TOKEN_TIME = Measure("ms_per_token", "ms per token", more_is_better=False)


@dataclass(frozen=True)
class Workload:
    """`draw` makes the lengths with a generator seeded by the name. All prompts begin with the same `shared` tokens.

    `primed`: a request with the shared tokens is served before the clock starts. `staggered`: the gaps between arrivals are
    distributed exponentially. `bound_by_memory`: all weights are read for every token. `busy`: meanwhile, other processes
    keep the cores busy; lengths and arrivals are those of the workload without `-busy`, but the token ids are not, or the
    prompts would be cached.
    """

    name: str
    question: str
    draw: Callable[[Random], Lengths]
    measure: Measure = OUTPUT_SPEED
    shared: int = 0
    primed: bool = False
    staggered: bool = False
    bound_by_memory: bool = False
    busy: bool = False

    @property
    def drawn_as(self) -> str:
        """The name that decides lengths and arrivals."""
        return self.name.removesuffix(BUSY)


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("offline", "all at once", lambda rng: [(rng.randint(64, 256), 64) for _ in range(NUM_REQUESTS)]),
        Workload("shared", "one long beginning for all", lambda rng: [(32, 32)] * NUM_REQUESTS, shared=SHARED_PROMPT),
        Workload(
            "shared-cached",
            "the same, served before",
            lambda rng: [(32, 32)] * NUM_REQUESTS,
            shared=SHARED_PROMPT,
            primed=True,
        ),
        Workload("single", "one stream", lambda rng: [(32, 128)], TOKEN_TIME, bound_by_memory=True),
        Workload("prefill", "one long prompt", lambda rng: [(2048, 1)], INPUT_SPEED),
        Workload(
            "staggered",
            "arriving one by one",
            lambda rng: [(rng.randint(32, 256), rng.randint(16, 128)) for _ in range(2 * NUM_REQUESTS)],
            staggered=True,
        ),
    )
}
for _name in ("single", "staggered"):
    WORKLOADS[_name + BUSY] = replace(WORKLOADS[_name], name=_name + BUSY, busy=True, bound_by_memory=False)
WARM_UP = [(64, 8), (100, 8), (300, 8)]


@dataclass(frozen=True)
class Job:
    """A workload for one model, ready to be sent to a worker. `prime` is served before the clock starts.

    `shared` says whether the prompts share a prefix.
    """

    requests: list[Request]
    prime: list[Request]
    shared: bool

    def as_message(self) -> dict[str, Any]:
        """What `peers/worker.py` reads."""
        return asdict(self)


def shape(workload: Workload, context_len: int) -> tuple[int, Lengths, bool]:
    """`(shared, lengths, scaled)`: how many tokens all prompts share, the lengths of each request, and whether all lengths
    were reduced in proportion because a context of `context_len` tokens is too short for the workload."""
    lengths, shared = workload.draw(Random(workload.drawn_as)), workload.shared
    longest = max(shared + prompt + new for prompt, new in lengths)
    if longest <= context_len:
        return shared, lengths, False
    factor = context_len / longest
    lengths = [(max(1, int(prompt * factor)), max(1, int(new * factor))) for prompt, new in lengths]
    shared = int(shared * factor)
    over = max(shared + prompt + new for prompt, new in lengths) - context_len  # rounding up to 1 may exceed it
    if over > 0:
        lengths = [(max(1, prompt - over), new) for prompt, new in lengths]
    return shared, lengths, True


def describe(workload: Workload, context_len: int, gap: float, busy: int = 0) -> str:
    """The workload's lengths with this context, in words. `busy`: how many other processes keep the cores busy."""
    shared, lengths, scaled = shape(workload, context_len)
    prompts, outputs = ([pair[i] for pair in lengths] for i in (0, 1))
    common = f"{shared} shared + " if shared else ""
    arrivals = f", {gap:g} s between arrivals on average" if workload.staggered else ""
    cached = ", shared tokens already cached" if workload.primed else ""
    beside = f", beside {busy} busy processes" if workload.busy else ""
    scaling = f" (reduced to fit a context of {context_len} tokens)" if scaled else ""
    return f"{len(lengths)} x {common}{_span(prompts)} in, {_span(outputs)} out{arrivals}{cached}{beside}{scaling}"


def make_job(workload: Workload, seed: int, context_len: int, vocab_size: int, gap: float) -> Job:
    """Make the requests. `seed` decides only the token ids. `gap`: mean seconds between staggered arrivals."""
    shared, lengths, _ = shape(workload, context_len)
    ids, arrivals = Random(f"{workload.name}/{seed}"), Random(f"{workload.drawn_as}/arrivals")
    beginning = _tokens(ids, shared, vocab_size)
    requests, at = [], 0.0
    for prompt, new in lengths:
        requests.append(Request(beginning + _tokens(ids, prompt, vocab_size), new, at))
        if workload.staggered:
            at += arrivals.expovariate(1.0) * gap
    prime = [Request(beginning + _tokens(ids, 8, vocab_size), 2)] if workload.primed else []
    return Job(requests, prime, shared > 0)


def warm_up(context_len: int, vocab_size: int) -> Job:
    """A few short requests, so that first passes and compilation are not measured."""
    ids = Random("warm up")
    lengths = [(min(prompt, max(1, context_len - new)), new) for prompt, new in WARM_UP if new < context_len]
    return Job([Request(_tokens(ids, prompt, vocab_size), new) for prompt, new in lengths], [], False)


def default_gap(parameters: int) -> float:
    """Seconds between arrivals that keep a small CPU busy: 0.65 per billion parameters, at least 0.01."""
    return max(0.01, round(0.65e-9 * parameters, 2))


def _tokens(rng: Random, count: int, vocab_size: int) -> list[int]:
    """Random tokens other than the first few hundred, where vocabularies keep their special tokens."""
    return [rng.randrange(min(300, vocab_size // 2), vocab_size) for _ in range(count)]


def _span(values: list[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}-{high}"
