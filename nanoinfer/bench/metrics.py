"""Figures from a worker's answers: the summary of one run, and comparisons over rounds."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import mean, median, quantiles
from typing import Any

from nanoinfer.bench.workloads import Measure, Request


def summary(requests: Sequence[Request], answer: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of one run.

    `ttft_s`: seconds from arrival to the first token, median over requests. `tpot_ms`: milliseconds between two tokens
    of a request, percentiles over all such gaps of all requests. `ms_per_token`: the mean gap of a request, median over
    requests. The last two are None when no request generates a second token.
    """
    times, wall, cached = answer["times"], answer["wall_s"], answer["cached_tokens"]
    gaps = [[1000 * (b - a) for a, b in pairwise(values)] for values in times if len(values) > 1]
    every = [gap for some in gaps for gap in some]
    centiles = quantiles(every, n=100, method="inclusive") if len(every) > 1 else every * 99
    first = [round(values[0] - request.arrival, 6) for request, values in zip(requests, times, strict=True)]
    return {
        "wall_s": wall,
        "output_tok_s": sum(map(len, answer["tokens"])) / wall,
        "input_tok_s": sum(len(request.prompt) for request in requests) / wall,
        "ttft_s": median(first),
        "ttft_each_s": first,
        "ms_per_token": median(map(mean, gaps)) if gaps else None,
        "tpot_ms": {"p50": centiles[49], "p99": centiles[98]} if every else None,
        "peak_memory_mb": answer["peak_memory_mb"],
        "cached_tokens": None if None in cached else sum(cached),
        "digest": hashlib.sha256(json.dumps(answer["tokens"]).encode()).hexdigest()[:16],
        "tokens": answer["tokens"],
    }


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
    return (ratios, max(sorted(set(winners)), key=winners.count)) if ratios else None


def runs_of(model: Mapping[str, Any], workload: str, engine: str) -> list[dict[str, Any]]:
    """The runs of one workload on one engine, failed ones included."""
    return [run for run in model["runs"] if run["workload"] == workload and run["engine"] == engine]


def by_round(model: Mapping[str, Any], workload: str, engine: str, key: str) -> dict[int, Any]:
    """Round → the run's figure `key`, for the rounds that have it."""
    runs = runs_of(model, workload, engine)
    return {run["round"]: run[key] for run in runs if run.get(key) is not None}
