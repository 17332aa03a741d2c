"""What drafts bring: the same requests with and without drafts, by workload, drafter and number of requests at a time.

All engines are made once, in this process, and warmed up. From then on, an engine with drafts and the one without serve the
same requests by turns (without, with, with, without, ...), each with an empty cache, and a ratio is that of their times. Every
output is compared with the one without drafts. One more engine without drafts takes a drafter's place ("once more"): its
ratios are the noise that the others are to be read against.
"""

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tqdm.auto import tqdm

from nanoinfer.bench.draft_workloads import DRAFT_WORKLOADS, Ask, DraftWorkload, copied_share, make_asks
from nanoinfer.bench.machine import Checkpoint
from nanoinfer.bench.settings import Settings, new_results
from nanoinfer.llm import LLM
from nanoinfer.model.loader import resolve_model_path
from nanoinfer.requests.outputs import RequestOutput

FORMAT = "drafts"
LEAST_REQUESTS = 8  # of a run: with fewer at a time, they are served in turns
SECOND_VISIT = "tree"  # the drafter that knows a text once it was served
Results = dict[str, Any]


@dataclass(frozen=True)
class DraftSettings:
    """What to measure. `requests`: how many at a time. `always`: draft even where it is not expected to pay.

    `draft_model` None: the model's own. `new_tokens`: per request at most; None: as the workloads say. `least_requests`: a
    run has at least so many.
    """

    model: str = "story"
    draft_model: str | None = None
    workloads: Sequence[str] = tuple(DRAFT_WORKLOADS)
    requests: Sequence[int] = (1, 4, 16, 32)
    num_draft_tokens: Sequence[int] = (3, 7)
    rounds: int = 5
    threads: int = 1
    seed: int = 0
    always: bool = False
    new_tokens: int | None = None
    least_requests: int = LEAST_REQUESTS

    def __post_init__(self) -> None:
        for name in self.workloads:
            if name not in DRAFT_WORKLOADS:
                raise ValueError(f"--workloads {name}: must be one of {', '.join(DRAFT_WORKLOADS)}")
        for option, numbers, most in (
            ("--requests", self.requests, 256),
            ("--num-draft-tokens", self.num_draft_tokens, 16),
            ("--rounds", [self.rounds], 1000),
            ("--threads", [self.threads], 1024),
        ):
            for number in numbers:
                if not 1 <= number <= most:
                    raise ValueError(f"{option} {number}: must be in 1..{most}")


@dataclass(frozen=True)
class Variant:
    """An engine: who drafts, and how many tokens. Nobody: `again` tells the engine for the noise from the other."""

    drafters: tuple[str, ...] = ()
    num_draft_tokens: int = 0
    again: bool = False

    @property
    def second_visit(self) -> bool:
        """Whether its requests, and those of the run without drafts beside it, are served once before they are timed."""
        return self.drafters == (SECOND_VISIT,)

    def __str__(self) -> str:
        if not self.drafters:
            return "once more" if self.again else "without"
        return f"{'+'.join(self.drafters)}{', second visit' if self.second_visit else ''}, {self.num_draft_tokens}"


WITHOUT, ONCE_MORE = Variant(), Variant(again=True)


def variants(workload: DraftWorkload, num_draft_tokens: Sequence[int]) -> list[Variant]:
    """The rows of a workload's table, the noise last."""
    return [*(Variant(names, count) for names in workload.drafters for count in num_draft_tokens), ONCE_MORE]


@dataclass
class Served:
    """What one engine of a pair gave, in the order of the requests, and how many seconds it took."""

    outputs: list[RequestOutput] = field(default_factory=list)
    seconds: float = 0.0


def measure_drafts(settings: DraftSettings, keep: Callable[[Results], None] = lambda results: None) -> Results:
    """Measure all workloads. `keep` is called with the results after every block of a round. Errors as `LLM`."""
    workloads = [DRAFT_WORKLOADS[name] for name in dict.fromkeys(settings.workloads)]
    rows = {w.name: variants(w, settings.num_draft_tokens) for w in workloads}
    results = start_results(settings)
    results["rows"] = {name: [str(row) for row in each] for name, each in rows.items()}
    before = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        needed = dict.fromkeys([WITHOUT, *(row for each in rows.values() for row in each)])
        llms = {each: _load(settings, each) for each in tqdm(needed, desc="load", unit="engine")}
        blocks = list(_blocks(settings, workloads))
        total = sum(len(rows[workload.name]) for workload, _, _ in blocks)
        with tqdm(total=total, desc="bench drafts", unit="pair") as bar:
            for workload, together, number in blocks:
                bar.set_postfix_str(f"{workload.name}, {together}")
                block = _measure_block(settings, workload, together, number, rows[workload.name], llms, bar)
                if number >= 0:  # the first is to warm up
                    results["runs"] += block
                    keep(results)
                results["differences"] += [line for run in block for line in run.pop("differences")]
    finally:
        torch.set_num_threads(before)
    return results


def start_results(settings: DraftSettings) -> Results:
    """A results file without measurements."""
    checkpoint = Checkpoint.read(resolve_model_path(settings.model))
    results = new_results(Settings([], [], settings.rounds, threads=settings.threads, seed=settings.seed))
    del results["models"], results["settings"]
    return {
        **results,
        "format": FORMAT,
        "model": checkpoint.as_dict(),
        "always": settings.always,
        "requests": sorted(set(settings.requests)),
        "workloads": {name: DRAFT_WORKLOADS[name].question for name in dict.fromkeys(settings.workloads)},
        "runs": [],
        "differences": [],
    }


def _load(settings: DraftSettings, variant: Variant) -> LLM:
    most = max(settings.requests)
    if not variant.drafters:
        return LLM(settings.model, max_running_requests=most)
    return LLM(
        settings.model,
        max_running_requests=most,
        drafter=variant.drafters,
        draft_model=settings.draft_model if "model" in variant.drafters else None,
        num_draft_tokens=variant.num_draft_tokens,
        adaptive_drafts=not settings.always,
    )


def _blocks(settings: DraftSettings, workloads: Sequence[DraftWorkload]) -> Iterator[tuple[DraftWorkload, int, int]]:
    """Workload, requests at a time, round: first -1, which warms up and from which engines learn what a pass costs."""
    for number in range(-1, settings.rounds):
        for workload in workloads:
            for together in sorted(set(settings.requests)):
                yield workload, together, number


def _measure_block(
    settings: DraftSettings,
    workload: DraftWorkload,
    together: int,
    number: int,
    rows: Sequence[Variant],
    llms: dict[Variant, LLM],
    bar: "tqdm[Any]",
) -> list[dict[str, Any]]:
    """Every row beside the engine without drafts, in shuffled order."""
    count = together * -(-settings.least_requests // together)
    asks = make_asks(workload, llms[WITHOUT], count, f"{settings.seed}/{number}", settings.new_tokens)
    order = list(rows)
    random.Random(f"{workload.name}/{together}/{number}").shuffle(order)
    runs = []
    for row in order:
        without, drafted = serve_pair(llms[WITHOUT], llms[row], asks, together, row.second_visit)
        runs.append(
            {
                **{"round": number, "workload": workload.name, "requests": together, "row": str(row)},
                **_figures(asks, without, drafted),
                "differences": [
                    f"{workload.name}, {row}, {together} at a time, round {number + 1}, {difference}"
                    for difference in differences(without.outputs, drafted.outputs)
                ],
            }
        )
        bar.update(1)
    return runs


def serve_pair(
    one: LLM, other: LLM, asks: Sequence[Ask], together: int, second_visit: bool = False
) -> tuple[Served, Served]:
    """Serve the requests, `together` at a time, on two engines by turns, so that other work on the machine slows both. Each
    begins with an empty cache; on a second visit, with one that the same requests have filled."""
    served = [Served(), Served()]
    for llm in (one, other):
        llm.engine.flush_cache()
        if second_visit:
            llm.generate([ask.prompt for ask in asks], [ask.params for ask in asks], use_tqdm=False)
    gc.collect()
    for turn, start in enumerate(range(0, len(asks), together)):
        group = asks[start : start + together]
        prompts, params = [ask.prompt for ask in group], [ask.params for ask in group]
        pair = list(zip((one, other), served, strict=True))
        for llm, its in pair[:: -1 if turn % 2 else 1]:
            began = time.perf_counter()
            its.outputs += llm.generate(prompts, params, use_tqdm=False)
            its.seconds += time.perf_counter() - began
    return served[0], served[1]


def differences(without: Sequence[RequestOutput], drafted: Sequence[RequestOutput]) -> list[str]:
    """A line for each request whose tokens, or the reason for its end, are not those without drafts."""
    lines = []
    for i, (one, other) in enumerate(zip(without, drafted, strict=True)):
        ours, theirs = list(one.token_ids), list(other.token_ids)
        if ours != theirs:
            shared = min(len(ours), len(theirs))
            at = next((j for j in range(shared) if ours[j] != theirs[j]), shared)
            token, expected = (str(ids[at]) if at < len(ids) else "none" for ids in (theirs, ours))
            lines.append(f"request {i}: output token {at} is {token}, but {expected} without drafts")
        elif one.finish_reason != other.finish_reason:
            lines.append(f"request {i}: ends with {other.finish_reason}, but {one.finish_reason} without drafts")
    return lines


def _figures(asks: Sequence[Ask], without: Served, drafted: Served) -> dict[str, Any]:
    """Of a pair of runs. `passes`: those after the prompt's, summed over requests; each gives a token more than drafts it
    accepts. `copied`: the share of the output that repeats the prompt, where that is what the workload is about."""
    outputs = drafted.outputs
    later = sum(len(output.token_ids) - 1 for output in outputs)
    accepted = sum(output.accepted_tokens for output in outputs)
    shares = [copied_share(a.prompt, list(o.token_ids)) for a, o in zip(asks, without.outputs, strict=True)]
    return {
        "seconds": drafted.seconds,
        "seconds_without": without.seconds,
        "new_tokens": later + len(outputs),
        "passes": later - accepted,
        "drafted": sum(output.drafted_tokens for output in outputs),
        "accepted": accepted,
        "copied": sum(shares) / len(shares),
    }
