"""Figures from a worker's answers: the summary of one run, and comparisons over rounds."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from nanoinfer.bench.workloads import Measure, Request


def summary(requests: Sequence[Request], answer: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of one run.

    `ttft_s`: seconds from arrival to the first token, median over requests. `tpot_ms`: milliseconds between two tokens
    of a request, percentiles over all such gaps of all requests. `ms_per_token`: the mean gap of a request, median over
    requests. The last two are None when no request generates a second token.
    """
    times, wall = [np.array(values) for values in answer["times"]], answer["wall_s"]
    gaps = np.concatenate([np.diff(values) for values in times]) * 1000
    means = [(values[-1] - values[0]) / (len(values) - 1) * 1000 for values in times if len(values) > 1]
    cached = answer["cached_tokens"]
    return {
        "wall_s": wall,
        "output_tok_s": sum(request.new_tokens for request in requests) / wall,
        "input_tok_s": sum(len(request.prompt) for request in requests) / wall,
        "ttft_s": median(values[0] - request.arrival for request, values in zip(requests, times, strict=True)),
        "ttft_each_s": [round(values[0] - r.arrival, 6) for r, values in zip(requests, times, strict=True)],
        "ms_per_token": median(means) if means else None,
        "tpot_ms": {f"p{p}": float(np.percentile(gaps, p)) for p in (50, 99)} if gaps.size else None,
        "peak_memory_mb": answer["peak_memory_mb"],
        "cached_tokens": None if None in cached else sum(cached),
        "cores_elsewhere": answer["cores_elsewhere"],
        "digest": hashlib.sha256(json.dumps(answer["tokens"]).encode()).hexdigest()[:16],
    }


def first_difference(ours: Sequence[Sequence[int]], others: Sequence[Sequence[int]]) -> tuple[int, int] | None:
    """`(request, position)` of the first token that differs; None when all tokens are the same."""
    for i, (a, b) in enumerate(zip(ours, others, strict=True)):
        for j, (x, y) in enumerate(zip(a, b, strict=True)):
            if x != y:
                return i, j
    return None


def same_requests(ours: Sequence[Sequence[int]], others: Sequence[Sequence[int]]) -> int:
    """The number of requests whose tokens are all the same."""
    return sum(list(a) == list(b) for a, b in zip(ours, others, strict=True))


def advantage(ours: float, other: float, measure: Measure) -> float:
    """How many times better `ours` is. Above 1, ours is better, whether more or less of the measure is good."""
    return ours / other if measure.more_is_better else other / ours


def against_best(
    ours: Mapping[int, float], peers: Mapping[str, Mapping[int, float]], measure: Measure
) -> tuple[list[float], str] | None:
    """For every round, how many times better `ours` is than that round's best peer; and the peer that was best most often.

    Values are given by round. None if no round has both `ours` and a peer.
    """
    ratios, winners = [], []
    for number, value in sorted(ours.items()):
        rivals = {name: values[number] for name, values in peers.items() if number in values}
        if rivals:
            winner = min(rivals, key=lambda name: advantage(value, rivals[name], measure))
            ratios.append(advantage(value, rivals[winner], measure))
            winners.append(winner)
    if not ratios:
        return None
    return ratios, max(sorted(set(winners)), key=winners.count)


def runs_of(model: Mapping[str, Any], workload: str, engine: str) -> list[dict[str, Any]]:
    """A model's runs of one workload on one engine, failed ones included."""
    return [run for run in model["runs"] if run["workload"] == workload and run["engine"] == engine]


def by_round(model: Mapping[str, Any], workload: str, engine: str, key: str) -> dict[int, Any]:
    """Round → the run's figure `key`, for the rounds that have it."""
    runs = runs_of(model, workload, engine)
    return {run["round"]: run[key] for run in runs if run.get(key) is not None}
