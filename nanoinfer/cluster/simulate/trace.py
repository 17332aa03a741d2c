"""Trace: a kind of traffic, which is sessions that arrive at a rate. synthetic.py and production.py have the kinds."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import ClassVar

from nanoinfer.cluster.simulate.arrivals import Arrivals
from nanoinfer.cluster.simulate.lengths import Lengths
from nanoinfer.cluster.simulate.segments import Segment, mixed
from nanoinfer.cluster.simulate.sessions import Session, Turn, under_way


class SegmentMaker:
    """Makes segments that no other session has (`new`), or that all sessions with the same number share (`shared`)."""

    def __init__(self, seed: int, user: int):
        base = mixed(mixed(seed) ^ mixed(2 * user))
        self._numbers = (mixed(base ^ n) for n in count())

    def new(self, length: int) -> Segment:
        """A segment of its own."""
        return Segment(next(self._numbers), length)

    def shared(self, kind: str, number: int, length: int) -> Segment:
        """Shared segment `number` of this kind."""
        return Segment(mixed(int.from_bytes(kind.encode(), "big") ^ mixed(2 * number + 1)), length)


@dataclass(frozen=True)
class Trace(ABC):
    """A kind of traffic. `rate` requests per second arrive on average (of sessions accordingly fewer), in bursts if `shape`
    is below 1 (see Arrivals). `scale` multiplies all lengths, for small models; `think_scale` multiplies the times for
    which users think. The same seed gives the same sessions."""

    rate: float
    seed: int = 0
    scale: float = 1.0
    shape: float | None = None  # None: the trace's own
    think_scale: float = 1.0
    own_shape: ClassVar[float] = 1.0

    @property
    @abstractmethod
    def requests_per_session(self) -> float:
        """The mean number of turns."""

    @abstractmethod
    def turns(self, rng: Random, make: SegmentMaker) -> tuple[Turn, ...]:
        """The turns of one session."""

    @property
    def lasts_s(self) -> float:
        """About how long users of a long session think, all in all."""
        return 0.0

    def sessions(self, seconds: float, from_rest: bool = False) -> Iterator[Session]:
        """The sessions of so many seconds, in the order of their starts. At the beginning others are under way, as they
        would be at any time; `from_rest`: none are, so that fewer requests than `rate` come at first."""
        shape = self.own_shape if self.shape is None else self.shape
        arrivals = Arrivals(self.rate / self.requests_per_session, shape)
        before = 0.0 if from_rest else self.lasts_s * self.think_scale
        for user, start in enumerate(arrivals.times(Random(f"{self.seed} arrivals"), before + seconds)):
            session = under_way(self.session(user, start - before))
            if session.turns:
                yield session

    def session(self, user: int, start: float) -> Session:
        """The session of one user."""
        turns = self.turns(Random(f"{self.seed} {user}"), SegmentMaker(self.seed, user))
        if self.think_scale != 1.0:
            turns = tuple(replace(turn, think_s=turn.think_s * self.think_scale) for turn in turns)
        return Session(user, start, turns)

    def _length(self, lengths: Lengths, rng: Random) -> int:
        return max(1, round(lengths.draw(rng) * self.scale))


def zipf(rng: Random, size: int) -> int:
    """A number in 0..size - 1; number n is chosen about 1 / (n + 1) as often as number 0."""
    return min(int((size + 1) ** rng.random()), size) - 1
