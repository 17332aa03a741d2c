"""The figures of a cell: what one server did under one load."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from nanoinfer.bench.serve.answers import Answer, read_answer
from nanoinfer.bench.serve.client import Exchange
from nanoinfer.bench.serve.traffic import Traffic

TOO_MANY = 429


@dataclass(frozen=True)
class Goodput:
    """What a request must meet to count: milliseconds to the first token, and per token after it."""

    ttft_ms: float = 500.0
    tpot_ms: float = 100.0

    @classmethod
    def parse(cls, text: str) -> "Goodput":
        """`ttft_ms:500,tpot_ms:100`; what is not named stays as it is by default. ValueError naming what is wrong."""
        values: dict[str, float] = {}
        for part in text.split(","):
            name, colon, number = part.partition(":")
            if name not in cls.__dataclass_fields__ or not colon:
                raise ValueError(f"--goodput {text}: {part!r} must be ttft_ms:NUMBER or tpot_ms:NUMBER")
            if name in values:
                raise ValueError(f"--goodput {text}: {name} is given twice")
            try:
                values[name] = float(number)
            except ValueError:
                values[name] = math.nan
            if not 0 < values[name] < math.inf:
                raise ValueError(f"--goodput {text}: {name} must be a number above 0")
        return cls(**values)

    def __str__(self) -> str:
        return f"ttft_ms:{self.ttft_ms:g},tpot_ms:{self.tpot_ms:g}"


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
        if exchange.failure is not None or answer.error is not None:
            return None if self.is_refused else exchange.failure or f"{answer.status or 'no status'}: {answer.error}"
        if exchange.ended is None or self.is_refused:
            return None
        if not answer.is_whole:
            return "the answer ended without a finish reason and [DONE]"
        if answer.tokens is not None and answer.tokens != self.new_tokens:
            return f"the answer has {answer.tokens} tokens instead of {self.new_tokens}"
        return None if answer.times else "the answer has no text"

    @property
    def is_refused(self) -> bool:
        return self.answer.status == TOO_MANY

    @property
    def is_finished(self) -> bool:
        return self.exchange.ended is not None and not self.is_refused and self.problem is None

    @property
    def is_unfinished(self) -> bool:
        """There was no time left for it."""
        return self.exchange.ended is None and self.exchange.failure is None and not self.is_refused

    @property
    def ttft_s(self) -> float | None:
        return self.answer.times[0] - self.exchange.due if self.answer.times else None

    @property
    def tpot_s(self) -> float:
        """Mean time per token after the first one."""
        times = self.answer.times
        return (times[-1] - times[0]) / max(1, self.answer.output_tokens - 1)

    def tokens_until(self, end: float) -> float:
        """How many tokens had come by then. Pieces that came later have their share of the tokens."""
        times = self.answer.times
        return self.answer.output_tokens * sum(time <= end for time in times) / len(times) if times else 0.0

    def meets(self, goodput: Goodput) -> bool:
        if not self.is_finished or self.ttft_s is None:
            return False
        return 1e3 * self.ttft_s <= goodput.ttft_ms and 1e3 * self.tpot_s <= goodput.tpot_ms


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
    cached = [r.answer.cached_tokens for r in served if r.answer.cached_tokens is not None]
    prompts = [r.answer.prompt_tokens for r in served if r.answer.prompt_tokens is not None]
    problems = [r.problem for r in results if r.problem is not None]
    return {
        "requests": len(results),
        "finished": sum(r.is_finished for r in results),
        "refused": sum(r.is_refused for r in results),
        "unfinished": sum(r.is_unfinished for r in results),
        "errors": len(problems),
        "first_error": problems[0] if problems else None,
        "tokens_s": sum(r.tokens_until(end) for r in served) / traffic.seconds,
        "requests_s": sum(r.is_finished and (r.exchange.ended or 0) <= end for r in results) / traffic.seconds,
        "goodput": sum(r.meets(goodput) for r in results) / traffic.seconds,
        "ttft_ms": percentiles(waits),
        "gap_ms": percentiles(gaps),
        "prompt_tokens": sum(prompts) / len(prompts) if prompts else None,
        "cached_tokens": sum(cached) / len(cached) if cached else None,
        "client_share": traffic.client_s / traffic.wall_s,
        "stall_s": traffic.stall_s,
    }


def percentiles(values: Sequence[tuple[float, bool]]) -> dict[str, Any] | None:
    """p50 and p99 (nearest rank) of values, each with whether it is only a lower bound. None without values."""
    if not values:
        return None
    ranked = sorted(values)
    found: dict[str, Any] = {}
    for percent in (50, 99):
        value, is_bound = ranked[max(0, math.ceil(percent / 100 * len(ranked)) - 1)]
        found[f"p{percent}"] = value
        if is_bound:
            found["at_least"] = [*found.get("at_least", ()), f"p{percent}"]
    return found
