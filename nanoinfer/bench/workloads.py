"""The workloads: lengths and arrivals are the same for every engine, round and seed; token ids differ by seed."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanoinfer.bench.machine import Checkpoint

Lengths = list[tuple[int, int]]  # per request: prompt tokens after the shared ones, tokens to generate

NUM_REQUESTS = 16
SHARED_PROMPT = 512


@dataclass(frozen=True)
class Request:
    """A request with the token ids `prompt`, which arrives after `arrival` seconds. Exactly `new_tokens` are generated,
    greedily, or as `sampling` says: more of nanoinfer's SamplingParams, with which an output may end earlier. `adapter`:
    the name of the adapter it uses, if any."""

    prompt: list[int]
    new_tokens: int
    arrival: float = 0.0
    adapter: str | None = None
    sampling: dict[str, Any] | None = None


@dataclass(frozen=True)
class Measure:
    """A workload's main figure: a key of `metrics.summary`, its name in tables, and whether more is better."""

    key: str
    label: str
    more_is_better: bool = True


OUTPUT_SPEED = Measure("output_tok_s", "output tok/s")
INPUT_SPEED = Measure("input_tok_s", "input tok/s")
TOKEN_TIME = Measure("ms_per_token", "ms per token", more_is_better=False)


def measure_of(workload: str) -> Measure:
    """The main figure of a workload."""
    return {"single": TOKEN_TIME, "prefill": INPUT_SPEED}.get(workload, OUTPUT_SPEED)


@dataclass(frozen=True)
class Job:
    """Requests for a worker, as `peers/worker.py` reads them. `prime` is served before the clock starts. `shared`: whether
    the prompts share a prefix. `together`: how many are served at a time; when one has ended, the next one begins (0: all
    as they arrive)."""

    requests: list[Request]
    prime: list[Request]
    shared: bool = False
    together: int = 0


@dataclass(frozen=True)
class Workload:
    """`draw` makes the lengths with a generator seeded by the name. All prompts begin with the same `shared` tokens.

    `primed`: a request with the shared tokens is served before the clock starts. `staggered`: the gaps between arrivals are
    distributed exponentially.
    """

    name: str
    draw: Callable[[Random], Lengths]
    shared: int = 0
    primed: bool = False
    staggered: bool = False

    def __str__(self) -> str:
        return self.name

    def shape(self, context_len: int) -> tuple[int, Lengths, bool]:
        """`(shared, lengths, scaled)`: how many tokens all prompts share, the lengths of each request, and whether all
        lengths were reduced in proportion because a context of `context_len` tokens is too short for the workload."""
        lengths, shared = self.draw(Random(self.name)), self.shared
        longest = max(shared + prompt + new for prompt, new in lengths)
        if longest <= context_len:
            return shared, lengths, False
        factor = context_len / longest
        lengths = [(max(1, int(prompt * factor)), max(1, int(new * factor))) for prompt, new in lengths]
        return int(shared * factor), lengths, True

    def describe(self, checkpoint: "Checkpoint") -> str:
        """Its lengths with this model's context, in words."""
        shared, lengths, scaled = self.shape(checkpoint.context_len)
        prompts, outputs = ([pair[i] for pair in lengths] for i in (0, 1))
        common = f"{shared} shared + " if shared else ""
        gap = default_gap(checkpoint.parameters)
        arrivals = f", {gap:g} s between arrivals on average" if self.staggered else ""
        cached = ", shared tokens already cached" if self.primed else ""
        scaling = f" (reduced to fit a context of {checkpoint.context_len} tokens)" if scaled else ""
        return f"{len(lengths)} x {common}{_span(prompts)} in, {_span(outputs)} out{arrivals}{cached}{scaling}"

    def make_job(self, checkpoint: "Checkpoint", seed: int) -> Job:
        """Make the requests. `seed` decides only the token ids."""
        shared, lengths, _ = self.shape(checkpoint.context_len)
        ids, arrivals = Random(f"{self.name}/{seed}"), Random(f"{self.name}/arrivals")
        beginning = draw_tokens(ids, shared, checkpoint.vocab_size)
        requests, at = [], 0.0
        for prompt, new in lengths:
            requests.append(Request(beginning + draw_tokens(ids, prompt, checkpoint.vocab_size), new, at))
            if self.staggered:
                at += arrivals.expovariate(1.0) * default_gap(checkpoint.parameters)
        prime = [Request(beginning + draw_tokens(ids, 8, checkpoint.vocab_size), 2)] if self.primed else []
        return Job(requests, prime, shared > 0)


SHARED: Lengths = [(32, 32)] * NUM_REQUESTS
WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("offline", lambda rng: [(rng.randint(64, 256), 64) for _ in range(NUM_REQUESTS)]),
        Workload("shared", lambda rng: SHARED, SHARED_PROMPT),
        Workload("shared-cached", lambda rng: SHARED, SHARED_PROMPT, primed=True),
        Workload("single", lambda rng: [(32, 128)]),
        Workload("prefill", lambda rng: [(2048, 1)]),
        Workload(
            "staggered",
            lambda rng: [(rng.randint(32, 256), rng.randint(16, 128)) for _ in range(2 * NUM_REQUESTS)],
            staggered=True,
        ),
    )
}


def decode_workload(name: str) -> Workload | None:
    """`decode@N`: as `single`, N requests at once. None for another name."""
    found = re.fullmatch(r"decode@([1-9]\d*)", name)
    return Workload(name, lambda rng: [(32, 128)] * int(found[1])) if found else None


WARM_UP = (64, 100, 300)  # tokens of prompts


def warm_up(checkpoint: "Checkpoint") -> Job:
    """A few short requests, so that first passes and compilation are not measured."""
    ids = Random("warm up")
    prompts = [draw_tokens(ids, min(prompt, checkpoint.context_len - 8), checkpoint.vocab_size) for prompt in WARM_UP]
    return Job([Request(prompt, 8) for prompt in prompts], [])


def default_gap(parameters: int) -> float:
    """Seconds between arrivals that keep a small CPU busy: 0.65 per billion parameters, at least 0.01."""
    return max(0.01, round(0.65e-9 * parameters, 2))


def draw_tokens(rng: Random, count: int, vocab_size: int) -> list[int]:
    """Random tokens other than the first few hundred, where vocabularies keep their special tokens."""
    return [rng.randrange(min(300, vocab_size // 2), vocab_size) for _ in range(count)]


def _span(values: list[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}-{high}"
