"""Trace: a kind of traffic, which is sessions that arrive at a rate; and kinds that are made up."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import ClassVar

from nanoinfer.cluster.simulate.distributions import Around, Arrivals, Lengths, Quantiles
from nanoinfer.cluster.simulate.sessions import Segment, Session, Turn, mixed


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
    is below 1 (see Arrivals). `scale` multiplies all lengths, for small models. The same seed gives the same sessions."""

    rate: float
    seed: int = 0
    scale: float = 1.0
    shape: ClassVar[float] = 1.0

    @property
    def requests_per_session(self) -> float:
        """The mean number of turns."""
        return 1.0

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
        arrivals = Arrivals(self.rate / self.requests_per_session, self.shape)
        before = 0.0 if from_rest else self.lasts_s
        for user, start in enumerate(arrivals.times(Random(f"{self.seed} arrivals"), before + seconds)):
            session = self.session(user, start - before).from_now()
            if session.turns:
                yield session

    def session(self, user: int, start: float) -> Session:
        """The session of one user."""
        return Session(start, self.turns(Random(f"{self.seed} {user}"), SegmentMaker(self.seed, user)))

    def _length(self, lengths: Lengths, rng: Random) -> int:
        return max(1, round(lengths.draw(rng) * self.scale))


def zipf(rng: Random, size: int) -> int:
    """A number in 0..size - 1; number n is chosen about 1 / (n + 1) as often as number 0."""
    return min(int((size + 1) ** rng.random()), size) - 1


@dataclass(frozen=True)
class Chat(Trace):
    """Conversations of several turns. Each begins with one of `personas` system prompts, some of which are far more
    popular; the next turn comes `think_s` seconds after the answer, on average."""

    personas: int = 16
    system: ClassVar[Lengths] = Around(600, 0.5)
    question: ClassVar[Lengths] = Quantiles(((0, 4), (0.5, 60), (0.9, 250), (1, 1000)))
    answer: ClassVar[Lengths] = Quantiles(((0, 4), (0.5, 130), (0.9, 400), (1, 1000)))
    most_turns: int = 7
    think_s: float = 10.0

    @property
    def requests_per_session(self) -> float:
        return (1 + self.most_turns) / 2

    @property
    def lasts_s(self) -> float:
        return (self.most_turns - 1) * self.think_s

    def turns(self, rng: Random, make: SegmentMaker) -> tuple[Turn, ...]:
        persona = zipf(rng, self.personas)
        length = self._length(self.system, Random(f"{self.seed} persona {persona}"))
        history = [make.shared("persona", self.seed << 20 | persona, length)]
        found = list[Turn]()
        for number in range(rng.randint(1, self.most_turns)):
            history.append(make.new(self._length(self.question, rng)))
            answer = make.new(self._length(self.answer, rng))
            think = rng.expovariate(1 / self.think_s) if number else 0.0
            found.append(Turn(tuple(history), answer, think, (number - 1,) if number else ()))
            history.append(answer)
        return tuple(found)


@dataclass(frozen=True)
class SharedPrompts(Trace):
    """Applications with long instructions and short questions: one of `prompts` system prompts, then something new."""

    prompts: int = 64
    system: ClassVar[Lengths] = Around(2000, 0.5)
    question: ClassVar[Lengths] = Around(120, 0.8)
    answer: ClassVar[Lengths] = Around(60, 0.8)

    def turns(self, rng: Random, make: SegmentMaker) -> tuple[Turn, ...]:
        number = zipf(rng, self.prompts)
        length = self._length(self.system, Random(f"{self.seed} prompt {number}"))
        system = make.shared("prompt", self.seed << 20 | number, length)
        question = make.new(self._length(self.question, rng))
        return (Turn((system, question), make.new(self._length(self.answer, rng))),)


@dataclass(frozen=True)
class Bursts(Trace):
    """New prefixes, each of which is asked for many times at once: `crowd` requests within `within_s` seconds begin with a
    long document that nobody has sent before."""

    crowd: int = 24
    within_s: float = 0.5
    document: ClassVar[Lengths] = Around(3000, 0.5)
    question: ClassVar[Lengths] = Around(60, 0.8)
    answer: ClassVar[Lengths] = Around(60, 0.8)

    @property
    def requests_per_session(self) -> float:
        return float(self.crowd)

    def turns(self, rng: Random, make: SegmentMaker) -> tuple[Turn, ...]:
        document = make.new(self._length(self.document, rng))
        return tuple(
            Turn(
                (document, make.new(self._length(self.question, rng))),
                make.new(self._length(self.answer, rng)),
                rng.uniform(0, self.within_s),
            )
            for _ in range(self.crowd)
        )


@dataclass(frozen=True)
class Agents(Trace):
    """Agents that branch: a plan, then `branches` at once that go on for `steps` calls of tools each, then a summary. All
    begin with the same description of the tools; a branch keeps its history."""

    branches: int = 4
    steps: int = 4
    tools: ClassVar[Lengths] = Around(1500, 0.0)
    task: ClassVar[Lengths] = Around(500, 0.8)
    call: ClassVar[Lengths] = Around(80, 0.8)
    result: ClassVar[Lengths] = Around(300, 0.8)
    tool_s: float = 2.0

    @property
    def requests_per_session(self) -> float:
        return 2.0 + self.branches * self.steps

    @property
    def lasts_s(self) -> float:
        return 2 * self.steps * self.tool_s

    def turns(self, rng: Random, make: SegmentMaker) -> tuple[Turn, ...]:
        tools = make.shared("tools", self.seed, self._length(self.tools, Random(f"{self.seed} tools")))
        task, plan = make.new(self._length(self.task, rng)), make.new(self._length(self.call, rng))
        found, ends = [Turn((tools, task), plan)], list[int]()
        for _ in range(self.branches):
            history, before = [tools, task, plan], 0
            for _ in range(self.steps):
                history.append(make.new(self._length(self.result, rng)))
                answer = make.new(self._length(self.call, rng))
                found.append(Turn(tuple(history), answer, rng.expovariate(1 / self.tool_s), (before,)))
                history.append(answer)
                before = len(found) - 1
            ends.append(before)
        answers = tuple(found[end].answer for end in ends)
        found.append(Turn((tools, task, plan, *answers), make.new(self._length(self.call, rng)), 0.0, tuple(ends)))
        return tuple(found)
