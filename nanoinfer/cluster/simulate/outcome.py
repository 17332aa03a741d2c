"""Outcome: what happened in a run, kept small: a few numbers of each request, and no request itself."""

from array import array
from dataclasses import dataclass, field

import numpy as np

from nanoinfer.cluster.simulate.request import SimRequest


@dataclass
class Outcome:
    """What happened. A request counts as measured if it was sent from `measured_from` on and has ended.

    - Of each measured request, in the order of their ends: `sent` and `ttft` (seconds), `prompt_tokens`, `cached_tokens`,
      `ideal_tokens`, `output_tokens`, `replica`.
    - `busy_seconds`: for each replica, within the measured time. `sent_to`: how many requests each has got, since the
      start.
    - `open`: requests that had not ended when the run was stopped. `sent_in_all` and `ended_in_all` count since the start.
    - `choose_seconds`: of processor time, which the routers took for their choices.
    """

    measured_from: float = 0.0
    measured_until: float = 0.0
    sent: "array[float]" = field(default_factory=lambda: array("d"))
    ttft: "array[float]" = field(default_factory=lambda: array("d"))
    prompt_tokens: "array[int]" = field(default_factory=lambda: array("l"))
    cached_tokens: "array[int]" = field(default_factory=lambda: array("l"))
    ideal_tokens: "array[int]" = field(default_factory=lambda: array("l"))
    output_tokens: "array[int]" = field(default_factory=lambda: array("l"))
    replica: "array[int]" = field(default_factory=lambda: array("l"))
    busy_seconds: list[float] = field(default_factory=list)
    sent_to: list[int] = field(default_factory=list)
    sent_in_all: int = 0
    ended_in_all: int = 0
    open: int = 0
    choose_seconds: float = 0.0

    @property
    def measured(self) -> int:
        """How many requests were measured."""
        return len(self.ttft)

    def note_end(self, request: SimRequest) -> None:
        """A request has ended."""
        self.ended_in_all += 1
        if request.sent < self.measured_from:
            return
        assert request.replica is not None
        self.sent.append(request.sent)
        self.ttft.append(request.ttft)
        self.prompt_tokens.append(request.turn.prompt_tokens)
        self.cached_tokens.append(request.cached_tokens)
        self.ideal_tokens.append(request.ideal_tokens)
        self.output_tokens.append(request.output_tokens)
        self.replica.append(request.replica)

    def computed_by(self) -> np.ndarray:
        """How many tokens each replica computed for measured requests: prompts', where they were not cached, and
        outputs'."""
        tokens = np.array(self.prompt_tokens) - np.array(self.cached_tokens) + np.array(self.output_tokens)
        return np.bincount(np.array(self.replica), weights=tokens, minlength=len(self.busy_seconds))
