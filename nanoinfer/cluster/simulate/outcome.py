"""Outcome: what happened in a run, and what it comes to in a few figures."""

from dataclasses import dataclass, field

import numpy as np

from nanoinfer.cluster.simulate.sessions import SimRequest, Turn, chain


class EverythingSent:
    """What one infinitely large cache would have had of each prompt. It remembers prompts as soon as they are sent, and
    answers when they have ended: no routing finds more, but for tokens that are equal by chance."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def send(self, turn: Turn) -> int:
        """A prompt. Returns how many of its first tokens were there before; the last one is always computed."""
        keys, tokens = chain(turn.prompt), 0
        for key, segment in zip(keys, turn.prompt, strict=True):
            if key not in self._seen:
                break
            tokens += segment.length
        self._seen.update(keys)
        return min(tokens, turn.prompt_tokens - 1)

    def end(self, turn: Turn) -> None:
        """The answer to it is complete."""
        self._seen.add(chain((*turn.prompt, turn.answer))[-1])


@dataclass
class Outcome:
    """What happened. `measured`: the requests that were sent from `measured_from` on and have ended, in the order of their
    ends. `sent`, `ended` and `open` count all requests: those that had not ended when the run was stopped are open."""

    replicas: int
    measured_from: float = 0.0
    measured_until: float = 0.0
    measured: list[SimRequest] = field(default_factory=list)
    sent: int = 0
    ended: int = 0

    @property
    def open(self) -> int:
        return self.sent - self.ended


@dataclass(frozen=True)
class Report:
    """Figures of the requests that were measured.

    - `hit_rate`: the share of prompt tokens that were cached. `ideal_hit_rate`: if there were one cache for all, and it
      forgot nothing: no routing can do better.
    - `ttft_mean`, `ttft_p50`, `ttft_p99`: seconds from sending a request to its first token.
    - `tokens_per_second`: output tokens per second and replica. `imbalance`: the tokens that the replica with the most of
      them computed (prompts' and outputs'), over the average (1: all alike).
    """

    requests: int
    open: int
    hit_rate: float
    ideal_hit_rate: float
    ttft_mean: float
    ttft_p50: float
    ttft_p99: float
    tokens_per_second: float
    imbalance: float

    @classmethod
    def of(cls, outcome: Outcome) -> "Report":
        """The figures of a run. ValueError when no request was measured."""
        requests, replicas = outcome.measured, outcome.replicas
        if not requests:
            raise ValueError("no request was measured; run longer, or measure from earlier on")
        prompt = sum(each.turn.prompt_tokens for each in requests)
        output = sum(each.output_tokens for each in requests)
        ttft = [each.ttft for each in requests]
        p50, p99 = np.percentile(ttft, [50, 99])
        tokens = [each.turn.prompt_tokens - each.cached_tokens + each.output_tokens for each in requests]
        computed = np.bincount([each.replica for each in requests], weights=tokens, minlength=replicas)
        return cls(
            requests=len(requests),
            open=outcome.open,
            hit_rate=sum(each.cached_tokens for each in requests) / prompt,
            ideal_hit_rate=sum(each.ideal_tokens for each in requests) / prompt,
            ttft_mean=float(np.mean(ttft)),
            ttft_p50=float(p50),
            ttft_p99=float(p99),
            tokens_per_second=output / (outcome.measured_until - outcome.measured_from) / replicas,
            imbalance=float(computed.max() / computed.mean()),
        )
