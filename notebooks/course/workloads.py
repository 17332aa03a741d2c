"""Workloads of requests, by steps and by the clock, and what came of them.

    workload = [Request(FOX, 20), Request(BEAR, 16, at=3)]     the second arrives after 3 steps
    run = serve(workload, max_total_tokens=64)                 a new engine around the story model
    draw(run, "64 slots")                                      its timeline
    compare({"64 slots": run})                                 one line of numbers per run

There, a moment is a step of the engine and not a second, so every number is the same on every computer. By the clock, with
Azure's lengths and bursts:

    load = azure_load(200, prompt_scale=1 / 40, output_scale=1 / 10)    for a small model
    timed = serve_timed(engine, load, rate=8.0)                         requests per second
    print(Figures.of(timed, Limits(ttft=1.0, gap=0.2)))                 what that is worth to readers
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from itertools import islice, pairwise
from random import Random
from typing import Any

import numpy as np
from IPython.display import display

from nanoinfer.cluster.simulate.traces import AzureConversation2024, arrivals
from nanoinfer.config import EngineConfig
from nanoinfer.engine.engine import Engine
from nanoinfer.llm import make_engine
from nanoinfer.model.loader import LoadedModel, load_model
from nanoinfer.outputs import RequestOutput
from nanoinfer.sampling_params import SamplingParams
from nanoinfer.scheduler.retraction import INITIAL_RATIO
from nanoinfer.scheduler.scheduler import Scheduler
from nanoinfer.viz.overview import timeline
from nanoinfer.viz.trace import Trace, record

HEAD = f"{'load':22}{'served':>6}{'good':>8}{'first token p50 p99':>22}{'gaps p50 p99':>16}"


@dataclass(frozen=True)
class Request:
    """Arrives after `at` steps and makes `new_tokens` tokens, or fewer when `stop` ends its text."""

    prompt: str | Sequence[int]
    new_tokens: int
    at: int = 0
    stop: str = ""

    @property
    def params(self) -> SamplingParams:
        stop = [self.stop] if self.stop else []
        return SamplingParams(temperature=0, max_new_tokens=self.new_tokens, ignore_eos=not stop, stop=stop)


@dataclass
class Run:
    """What came of a workload; the lists have one entry per pass."""

    engine: Engine
    trace: Trace | None = None
    outputs: dict[int, RequestOutput] = field(default_factory=dict)
    passes: str = ""  # E or D
    new_tokens: list[int] = field(default_factory=list)  # T of each pass
    waiting: list[int] = field(default_factory=list)  # requests
    ratio: list[float] = field(default_factory=list)  # the new_token_ratio
    error: str = ""  # what a scheduler that cannot get its slots raised

    @property
    def token_ids(self) -> list[list[int]]:
        """The output tokens of each request, in order of arrival."""
        return [self.outputs[i].token_ids for i in sorted(self.outputs)]


def new_engine(
    scheduler: Callable[..., Scheduler] = Scheduler,
    clock: Callable[[], float] = time.perf_counter,
    model: LoadedModel | None = None,
    **settings: Any,
) -> Engine:
    """An engine around the story model, or `model`: 4 rows, 1,024 slots, in order of arrival, no chunks, unless `settings`
    (of EngineConfig) say otherwise. `scheduler`: a class to use in place of the package's."""
    defaults: dict[str, Any] = {"max_running_requests": 4, "max_total_tokens": 1024, "max_context_len": 1024}
    defaults |= {"schedule_policy": "fcfs", "chunked_prefill_size": None, "random_seed": 0}
    config = EngineConfig(**(defaults | settings))
    engine = make_engine(model or _story(), config, clock)
    engine.scheduler = scheduler(config, engine.cache, clock)
    return engine


def serve(
    workload: Sequence[Request],
    scheduler: Callable[..., Scheduler] = Scheduler,
    traced: bool = True,
    aside: float | None = None,
    **settings: Any,
) -> Run:
    """Run a workload, given in order of arrival, step by step until every request has ended. `aside`: the share of what
    requests may still make that admission sets aside at first; 1 stays 1, others fall and rise (NewTokenRatio)."""
    if aside is not None:
        settings["schedule_conservativeness"] = 11 if aside == 1 else max(aside, 0.001) / INITIAL_RATIO
    run = Run(new_engine(scheduler, **settings))
    engine, arriving, step = run.engine, deque(workload), 0
    with record(engine) if traced else nullcontext() as run.trace:
        while arriving or engine.has_unfinished():
            while arriving and arriving[0].at <= step:
                request = arriving.popleft()
                engine.add_request(request.prompt, request.params)
            step += 1
            try:
                outputs = engine.step()
            except AssertionError as error:  # its requests end with the next step
                run.error = str(error)
                continue
            run.outputs |= {output.request_id: output for output in outputs}
            if (batch := engine.last_batch) is not None:
                run.passes += batch.forward_mode.name[0]
                run.new_tokens.append(len(batch.input_ids))
                run.waiting.append(len(engine.scheduler.waiting))
                run.ratio.append(engine.scheduler.new_token_ratio.value)
    return run


def draw(run: Run, title: str, **options: Any) -> None:
    """The timeline of a traced run, one lane per request; `options` as in viz.timeline."""
    if run.trace is None:
        raise ValueError("run: was made with traced=False, and so has nothing to draw")
    display(timeline(run.trace, title=title, **options))


def compare(runs: Mapping[str, Run]) -> None:
    """Print one line of numbers per run."""
    width = max(map(len, runs))
    print(f"{'':{width}}  steps  EXTEND  DECODE  computed  waiting  retracted  hit rate")
    for name, run in runs.items():
        stats = run.engine.stats()
        print(
            f"{name:{width}}  {len(run.passes):5}  {run.passes.count('E'):6}  {run.passes.count('D'):6}  "
            f"{sum(run.new_tokens):8}  {sum(run.waiting):7}  {stats.retractions:9}  {stats.hit_rate:8.0%}"
        )


@cache
def _story() -> LoadedModel:
    return load_model("story")


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
    """Percentiles in seconds; output tokens and requests per second; the share of the requests that are good, and how many
    there were. With requests at a rate, that share of the rate is the goodput."""

    ttft_p50: float
    ttft_p99: float
    gap_p50: float
    gap_p99: float
    throughput: float
    served: float
    good: float
    number: int

    @classmethod
    def of(cls, timed: Sequence[Timed], limits: Limits) -> "Figures":
        ttft, gaps = [each.ttft for each in timed], [gap for each in timed for gap in each.gaps]
        (first50, first99), (gap50, gap99) = (np.percentile(values, [50, 99]).tolist() for values in (ttft, gaps))
        seconds = max(each.times[-1] for each in timed) - min(each.due for each in timed)
        good = sum(limits.hold(each) for each in timed) / len(timed)
        tokens = sum(len(each.times) for each in timed)
        return cls(first50, first99, gap50, gap99, tokens / seconds, len(timed) / seconds, good, len(timed))

    def __str__(self) -> str:
        return (
            f"p50 and p99 of the first token {self.ttft_p50:.2f} and {self.ttft_p99:.2f} s, "
            f"of gaps {1e3 * self.gap_p50:.0f} and {1e3 * self.gap_p99:.0f} ms, {self.throughput:.0f} tokens per second"
        )


def load_row(name: str, f: Figures) -> str:
    """A line below HEAD; times in ms."""
    times = "".join(f"{1000 * each:8.0f}" for each in (f.ttft_p50, f.ttft_p99, f.gap_p50, f.gap_p99))
    return f"{name:22}{f.served:6.1f}{f.good * f.served:8.1f}{times}"
