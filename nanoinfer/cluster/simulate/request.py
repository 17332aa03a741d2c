"""SimRequest: one request on its way through the cluster, and when it got where."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nanoinfer.cluster.simulate.segments import VOCAB_SIZE, all_tokens
from nanoinfer.cluster.simulate.sessions import SessionRun, Turn


@dataclass(eq=False)
class SimRequest:
    """Times are seconds of the simulation's clock. `cached_tokens`: how much of the prompt its replica had. `ideal_tokens`:
    how much of it one infinitely large cache would have had (see EverythingSent)."""

    id: int
    turn: Turn
    sent: float
    run: SessionRun | None = None
    number: int = 0  # of the turn in its session
    vocab_size: int = VOCAB_SIZE
    replica: int | None = None
    router: int = 0
    first_token: float | None = None
    ended: float | None = None
    cached_tokens: int = 0
    ideal_tokens: int = 0
    output_tokens: int = 0

    @cached_property
    def token_ids(self) -> np.ndarray:
        """The prompt's token ids, int64. They are made when they are first asked for."""
        return all_tokens(self.turn.prompt, self.vocab_size)

    @cached_property
    def answer_ids(self) -> Sequence[int]:
        """The token ids that the model will answer with."""
        answer: list[int] = self.turn.answer.tokens(self.vocab_size).tolist()
        return answer

    def forget_tokens(self) -> None:
        """Give back the memory of the token ids: the request has ended."""
        self.__dict__.pop("token_ids", None)
        self.__dict__.pop("answer_ids", None)

    @property
    def ttft(self) -> float:
        """Seconds from sending to the first token. ValueError while there is none."""
        if self.first_token is None:
            raise ValueError(f"request {self.id}: has no token yet")
        return self.first_token - self.sent
