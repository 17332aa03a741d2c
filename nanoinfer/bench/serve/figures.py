"""The figures of a cell: what one server did under one load."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from nanoinfer.bench.serve.client import Answer, Exchange, read_answer
from nanoinfer.bench.serve.traffic import Traffic


@dataclass(frozen=True)
class Goodput:
    """What a request must meet to count: milliseconds to the first token, and per token after it."""

    ttft_ms: float = 500.0
    tpot_ms: float = 100.0


@dataclass(frozen=True)
class Result:
    """A request and its answer, read. Times in seconds."""

    exchange: Exchange
    answer: Answer
    new_tokens: int

    @property
    def problem(self) -> str | None:
        """What is wrong with it, in words. None: it was answered, or refused with 429, or there was no time left for it."""
        exchange, answer = self.exchange, self.answer
        if self.is_refused or self.is_unfinished:
            return None
        if exchange.failure is not None or answer.error is not None:
            return exchange.failure or f"{answer.status or 'no status'}: {answer.error}"
        if not (answer.has_reason and answer.is_done):
            return "the answer ended without a finish reason and [DONE]"
        if answer.tokens not in (None, self.new_tokens):
            return f"the answer has {answer.tokens} tokens instead of {self.new_tokens}"
        return None if answer.times else "the answer has no text"

    @property
    def is_refused(self) -> bool:
        return self.answer.status == 429

    @property
    def is_unfinished(self) -> bool:
        """There was no time left for it."""
        return self.exchange.ended is None and self.exchange.failure is None and self.answer.error is None

    @property
    def is_finished(self) -> bool:
        return not self.is_refused and not self.is_unfinished and self.problem is None

    @property
    def ttft_s(self) -> float | None:
        return self.answer.times[0] - self.exchange.due if self.answer.times else None

    def tokens_until(self, end: float) -> float:
        """How many tokens had come by then. Pieces that came later have their share of the tokens."""
        times = self.answer.times
        return self.answer.output_tokens * sum(time <= end for time in times) / len(times) if times else 0.0

    def meets(self, goodput: Goodput) -> bool:
        if not self.is_finished or self.ttft_s is None:
            return False
        times = self.answer.times
        tpot = (times[-1] - times[0]) / max(1, self.answer.output_tokens - 1)
        return 1e3 * self.ttft_s <= goodput.ttft_ms and 1e3 * tpot <= goodput.tpot_ms


def read_results(traffic: Traffic, new_tokens: int) -> list[Result]:
    """Each exchange with its answer."""
    return [Result(exchange, read_answer(exchange.packets), new_tokens) for exchange in traffic.exchanges]


def figures(traffic: Traffic, results: Sequence[Result], goodput: Goodput) -> dict[str, Any]:
    """Figures of the window in which requests began.

    Tokens and requests per second: those that came or ended in it. `ttft_ms`, `gap_ms` (between two pieces of text of an
    answer) and goodput: of all requests that began in it, which also have some time after it. A request without a first
    token has waited at least until the measurement was over: a percentile that falls on one is in `at_least`.
    """
    end = traffic.began + traffic.seconds
    over = traffic.began + traffic.wall_s
    served = [r for r in results if r.problem is None and not r.is_refused]
    waits = [(1e3 * (over - r.exchange.due), True) if r.ttft_s is None else (1e3 * r.ttft_s, False) for r in served]
    gaps = [(1e3 * (b - a), False) for r in served for a, b in pairwise(r.answer.times)]
    problems = [r.problem for r in results if r.problem is not None]

    def mean(name: str) -> float | None:
        values = [getattr(r.answer, name) for r in served if getattr(r.answer, name) is not None]
        return sum(values) / len(values) if values else None

    return {
        "requests": len(results),
        "finished": sum(r.is_finished for r in results),
        "refused": sum(r.is_refused for r in results),
        "unfinished": sum(r.is_unfinished and not r.is_refused for r in results),
        "errors": len(problems),
        "first_error": problems[0] if problems else None,
        "tokens_s": sum(r.tokens_until(end) for r in served) / traffic.seconds,
        "requests_s": sum(r.is_finished and (r.exchange.ended or 0) <= end for r in results) / traffic.seconds,
        "goodput": sum(r.meets(goodput) for r in results) / traffic.seconds,
        "ttft_ms": percentiles(waits),
        "gap_ms": percentiles(gaps),
        "prompt_tokens": mean("prompt_tokens"),
        "cached_tokens": mean("cached_tokens"),
        "client_share": traffic.client_s / traffic.wall_s,
    }


def percentiles(values: Sequence[tuple[float, bool]]) -> dict[str, Any] | None:
    """p50 and p99 (nearest rank) of values, each with whether it is only a lower bound. None without values."""
    if not values:
        return None
    ranked = sorted(values)
    chosen = {f"p{percent}": ranked[max(0, math.ceil(percent / 100 * len(ranked)) - 1)] for percent in (50, 99)}
    bounds = [name for name, (_, is_bound) in chosen.items() if is_bound]
    return {name: value for name, (value, _) in chosen.items()} | ({"at_least": bounds} if bounds else {})
