"""What drafts bring: the same requests with and without drafts, by workload, drafter and number of requests at a time.

All engines are made once, in this process, and warmed up. From then on, an engine with drafts and the one without serve
the same requests by turns (without, with, with, without, ...), each from an empty cache, and a ratio is that of their
times. Every output is compared with the one without drafts. One more engine without drafts takes a drafter's place ("once
more"): its ratios are the noise that the others are to be read against.
"""

import gc
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from tqdm.auto import tqdm

from nanoinfer.bench.draft_peers import PEER_WORKLOAD, DraftPeers
from nanoinfer.bench.draft_settings import LEAST_REQUESTS, WITHOUT, DraftSettings, Variant, variants
from nanoinfer.bench.draft_workloads import DRAFT_WORKLOADS, Ask, DraftWorkload, copied_share, make_asks
from nanoinfer.bench.frozen_heap import frozen_heap
from nanoinfer.bench.machine import Checkpoint
from nanoinfer.bench.settings import Settings, new_results
from nanoinfer.frontends.llm import LLM
from nanoinfer.model.loader import resolve_model_path
from nanoinfer.requests.outputs import RequestOutput

FORMAT = "drafts"
WARM_UP = 3  # rounds
TURN_S = 0.1  # of an engine, until the other one goes on
Results = dict[str, Any]


@dataclass
class Served:
    """What one engine of a pair gave, in the order of the requests, and how many seconds it took."""

    outputs: list[RequestOutput] = field(default_factory=list)
    seconds: float = 0.0


def measure_drafts(settings: DraftSettings, keep: Callable[[Results], None] = lambda results: None) -> Results:
    """Measure all workloads. `keep` is called with the results after every block of a round. Errors as `LLM`."""
    workloads = [DRAFT_WORKLOADS[name] for name in dict.fromkeys(settings.workloads)]
    rows = {w.name: variants(w, settings.num_draft_tokens) for w in workloads}
    results = start_results(settings, rows)
    before = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    peers = DraftPeers(settings.peers, sorted(set(settings.num_draft_tokens)))
    try:
        needed = dict.fromkeys([WITHOUT, *(row for each in rows.values() for row in each)])
        llms = {each: _load(settings, each) for each in tqdm(needed, desc="load", unit="engine")}
        peers.load(Checkpoint.read(resolve_model_path(settings.model)), settings.threads, settings.timeout)
        blocks = list(_blocks(settings, workloads))
        with (
            frozen_heap(),
            tqdm(
                total=sum(len(rows[block.workload.name]) for block in blocks), desc="bench drafts", unit="pair"
            ) as bar,
        ):
            for block in blocks:
                bar.set_postfix_str(f"{block.workload.name}, {block.together}")
                asks = _asks(settings, block, llms[WITHOUT])
                runs, tokens = _measure_block(block, asks, rows[block.workload.name], llms, bar)
                of_peers = peers.measure(asks, block.together, block.number, tokens) if block.has_peers else []
                results["differences"] += [line for run in runs for line in run.pop("differences")]
                if block.number >= 0:  # before, engines warm up
                    results["runs"] += runs
                    results["peers"] += of_peers
                    results["peer_versions"] = peers.versions
                    keep(results)
    finally:
        peers.close()
        torch.set_num_threads(before)
    return results


@dataclass(frozen=True)
class Block:
    """A workload with so many requests at a time, in a round. Rounds below 0 are to warm up: they teach engines what
    passes cost and what drafts bring."""

    workload: DraftWorkload
    together: int
    number: int

    @property
    def has_peers(self) -> bool:
        """Whether it is the workload that other engines serve, too."""
        return self.workload.name == PEER_WORKLOAD


def start_results(settings: DraftSettings, rows: Mapping[str, Sequence[Variant]]) -> Results:
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
        "rows": {name: [str(row) for row in each] for name, each in rows.items()},
        "runs": [],
        "differences": [],
        "num_draft_tokens": sorted(set(settings.num_draft_tokens)),
        "peers": [],
        "peer_versions": {},
    }


def _load(settings: DraftSettings, variant: Variant) -> LLM:
    most = max(*settings.requests, LEAST_REQUESTS)  # or what a second visit should find would not fit
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


def _blocks(settings: DraftSettings, workloads: Sequence[DraftWorkload]) -> Iterator[Block]:
    for number in range(-WARM_UP, settings.rounds):
        for workload in workloads:
            for together in sorted(set(settings.requests)):
                yield Block(workload, together, number)


def _asks(settings: DraftSettings, block: Block, llm: LLM) -> list[Ask]:
    """Twice as many as there are at a time, or `least_requests`."""
    count = max(2 * block.together, settings.least_requests)
    return make_asks(block.workload, llm, count, f"{settings.seed}/{block.number}", settings.new_tokens)


def _measure_block(
    block: Block, asks: Sequence[Ask], rows: Sequence[Variant], llms: Mapping[Variant, LLM], bar: "tqdm[Any]"
) -> tuple[list[dict[str, Any]], list[list[int]]]:
    """Every row beside the engine without drafts, in shuffled order. Returns a dictionary per row, and the tokens without
    drafts."""
    name, together = block.workload.name, block.together
    order = list(rows)
    random.Random(f"{name}/{together}/{block.number}").shuffle(order)
    runs, tokens = [], []
    for row in order:
        pair = llms[WITHOUT], llms[row]
        without, drafted = serve_pair(*pair, asks, together, row.second_visit, first=block.number % 2)
        runs.append(
            {
                "round": block.number,
                "workload": name,
                "requests": together,
                "row": str(row),
                **_figures(asks, without, drafted),
                "differences": [
                    f"{name}, {row}, {together} at a time, round {block.number + 1}, {difference}"
                    for difference in differences(without.outputs, drafted.outputs)
                ],
            }
        )
        tokens = [list(output.token_ids) for output in without.outputs]
        bar.update(1)
    return runs, tokens


def serve_pair(
    one: LLM, other: LLM, asks: Sequence[Ask], together: int, second_visit: bool = False, first: int = 0
) -> tuple[Served, Served]:
    """Serve the requests, `together` at a time, on two engines by turns of `TURN_S`: each time, the one that has made fewer
    tokens goes on. So other work on the machine slows both. Each begins with an empty cache; on a second visit, with one
    that the same requests have filled. `first`: 1 if the other engine has the first turn."""
    llms, served = (one, other), (Served(), Served())
    for llm in llms:
        llm.engine.flush_cache()
        if second_visit:
            llm.generate([ask.prompt for ask in asks], [ask.params for ask in asks], use_tqdm=False)
    gc.collect()
    runs = [serving(llm, asks, together, its.outputs) for llm, its in zip(llms, served, strict=True)]
    tokens, running = [0, 0], [first, 1 - first]
    while running:
        turn = min(running, key=tokens.__getitem__)
        before, began, goes_on = llms[turn].engine.stats().output_tokens, time.perf_counter(), True
        while goes_on and time.perf_counter() - began < TURN_S:
            goes_on = next(runs[turn], False)
        served[turn].seconds += time.perf_counter() - began
        tokens[turn] += llms[turn].engine.stats().output_tokens - before
        if not goes_on:
            running.remove(turn)
    return served


def serving(llm: LLM, asks: Sequence[Ask], together: int, outputs: list[RequestOutput]) -> Iterator[bool]:
    """Serve `asks`, `together` at a time: when one has ended, the next one comes, as from so many clients. (If groups
    waited for their slowest request, that one would decide how long they take.) Yields True after each step, and puts the
    outputs, in order, into `outputs` at the end."""
    engine, coming, last = llm.engine, iter(asks), dict[int, RequestOutput | None]()
    running = 0
    while True:
        for ask in islice(coming, together - running):
            last[engine.add_request(ask.prompt, ask.params)], running = None, running + 1
        if not running:
            break
        for output in engine.step():
            if output.finished:
                last[output.request_id], running = output, running - 1
        yield True
    outputs += [output for output in last.values() if output is not None]


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
