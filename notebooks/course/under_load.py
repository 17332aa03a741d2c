"""Requests that arrive by the clock: Azure's lengths and bursts, when each token came, and what that is worth to readers.

load = azure_load(200, prompt_scale=1 / 40, output_scale=1 / 10)    for a small model
timed = serve_timed(engine, load, rate=8.0)                        requests per second
print(describe(timed, Limits(ttft=1.0, gap=0.2)))
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from random import Random

import numpy as np

from nanoinfer.cluster.simulate.traces import AzureConversation2024, arrivals
from nanoinfer.engine.engine import Engine
from nanoinfer.sampling_params import SamplingParams


@dataclass(frozen=True)
class Ask:
    """A request to come. `at`: its arrival, in mean gaps between two arrivals."""

    at: float
    prompt_tokens: int
    new_tokens: int


@dataclass
class Timed:
    """A request that came at second `due`, and the seconds at which its tokens came."""

    due: float
    times: list[float] = field(default_factory=list)

    @property
    def ttft(self) -> float:
        return self.times[0] - self.due

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.times)]


@dataclass(frozen=True)
class Limits:
    """A request is good if its first token comes within `ttft` seconds and no later one after a gap of more than `gap`."""

    ttft: float
    gap: float

    def hold(self, request: Timed) -> bool:
        return request.ttft <= self.ttft and max(request.gaps, default=0.0) <= self.gap


def azure_load(count: int, prompt_scale: float = 1.0, output_scale: float = 1.0, seed: int = 0) -> list[Ask]:
    """Requests with the lengths (times a scale) and bursts of the Azure conversation trace of 2024."""
    kind, rng = AzureConversation2024, Random(seed)
    times = islice(arrivals(Random(f"{seed} arrivals"), 1.0, kind.shape, math.inf), count)
    scaled = ((kind.prompt, prompt_scale), (kind.output, output_scale))
    return [Ask(at, *(max(1, round(lengths.draw(rng) * scale)) for lengths, scale in scaled)) for at in times]


def serve_timed(engine: Engine, load: Sequence[Ask], rate: float) -> list[Timed]:
    """Serve the load in an open loop: requests arrive at `rate` per second, however many are unanswered. The clock runs
    while the engine makes steps, and jumps to the next arrival when it has nothing to do."""
    rng, open_requests = Random(1), dict[int, Timed]()
    prompts = [[rng.randrange(300, 2000) for _ in range(ask.prompt_tokens)] for ask in load]  # texts were not published
    timed, arrived, now = [Timed(ask.at / rate) for ask in load], 0, 0.0
    while arrived < len(load) or engine.has_unfinished():
        if not engine.has_unfinished():
            now = max(now, timed[arrived].due)
        while arrived < len(load) and timed[arrived].due <= now:
            params = SamplingParams(temperature=0, max_new_tokens=load[arrived].new_tokens, ignore_eos=True)
            open_requests[engine.add_request(prompts[arrived], params)] = timed[arrived]
            arrived += 1
        began = time.perf_counter()
        outputs = engine.step()
        now += time.perf_counter() - began
        for output in outputs:
            open_requests[output.request_id].times.append(now)
    return timed


@dataclass(frozen=True)
class Figures:
    """Percentiles in seconds; output tokens per second; and the share of the requests that are good. With requests at a
    rate, that share of the rate is the goodput."""

    ttft_p50: float
    ttft_p99: float
    gap_p50: float
    gap_p99: float
    throughput: float
    good: float

    @classmethod
    def of(cls, timed: Sequence[Timed], limits: Limits) -> "Figures":
        ttft, gaps = [each.ttft for each in timed], [gap for each in timed for gap in each.gaps]
        (first50, first99), (gap50, gap99) = (np.percentile(values, [50, 99]).tolist() for values in (ttft, gaps))
        seconds = max(each.times[-1] for each in timed) - min(each.due for each in timed)
        good = sum(limits.hold(each) for each in timed) / len(timed)
        return cls(first50, first99, gap50, gap99, sum(len(each.times) for each in timed) / seconds, good)
