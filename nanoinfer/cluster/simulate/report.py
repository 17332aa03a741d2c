"""Report: what a run comes to, in a few figures."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nanoinfer.cluster.simulate.outcome import Outcome


@dataclass(frozen=True)
class Report:
    """Figures of the requests that were measured.

    - `hit_rate`: the share of prompt tokens that were cached. `ideal_hit_rate`: if there were one cache for all, and it
      forgot nothing: no routing can do better.
    - `ttft_mean`, `ttft_p50`, `ttft_p99`: seconds from sending a request to its first token.
    - `tokens_per_second`: output tokens per second and replica. `prompt_tokens_per_second` likewise.
    - `busy`: the share of the time in which a replica makes passes, on average. `imbalance`: the tokens that the
      replica with the most of them computed (prompts' and outputs'), over the average (1: all alike).
    - `choices_per_second`: what the routers could choose in a second of processor time, with nothing else to do.
    """

    requests: int
    open: int
    seconds: float
    hit_rate: float
    ideal_hit_rate: float
    ttft_mean: float
    ttft_p50: float
    ttft_p99: float
    tokens_per_second: float
    prompt_tokens_per_second: float
    busy: float
    imbalance: float
    choices_per_second: float

    @classmethod
    def of(cls, outcome: Outcome) -> "Report":
        """The figures of a run. ValueError when no request was measured."""
        if not outcome.measured:
            raise ValueError("no request was measured; run longer, or measure from earlier on")
        seconds, replicas = outcome.measured_until - outcome.measured_from, len(outcome.busy_seconds)
        prompt, computed = sum(outcome.prompt_tokens), outcome.computed_by()
        p50, p99 = np.percentile(outcome.ttft, [50, 99])
        return cls(
            requests=outcome.measured,
            open=outcome.open,
            seconds=seconds,
            hit_rate=sum(outcome.cached_tokens) / prompt,
            ideal_hit_rate=sum(outcome.ideal_tokens) / prompt,
            ttft_mean=float(np.mean(outcome.ttft)),
            ttft_p50=float(p50),
            ttft_p99=float(p99),
            tokens_per_second=sum(outcome.output_tokens) / seconds / replicas,
            prompt_tokens_per_second=prompt / seconds / replicas,
            busy=sum(outcome.busy_seconds) / replicas / seconds,
            imbalance=float(computed.max() / computed.mean()),
            choices_per_second=outcome.sent_in_all / outcome.choose_seconds if outcome.choose_seconds else 0.0,
        )

    def as_dict(self) -> dict[str, Any]:
        """Its figures by name, for JSON."""
        return asdict(self)
