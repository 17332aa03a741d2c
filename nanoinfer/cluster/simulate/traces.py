"""Trace: a kind of traffic, which is sessions that arrive at a rate; and TRACES: all kinds of traffic by name. Some are
made up, and others have the published statistics of production:

- **Azure 2024** (AzurePublicDataset, "Azure LLM inference trace 2024"; Stojkovic et al., "DynamoLLM"): a week, 27.3 million
  requests to a conversation service and 16.8 million to a code service. Medians, 90th and 99th percentiles below are
  those of the published files, and so are the gaps between arrivals (median over mean, of 2 million requests in a row):
  1.37 ms / 15.33 ms and 2.34 ms / 19.06 ms. For Poisson arrivals that would be 0.69. The ends (shares 0 and 1) are set
  so that the means come out as in the files: prompts of 1,632 and 2,511 tokens, outputs of 106 and 23.
"""

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import ClassVar

from nanoinfer.cluster.simulate.sessions import Segment, Session, Turn, mixed


def arrivals(rng: Random, rate: float, shape: float, until: float) -> Iterator[float]:
    """The times of `rate` arrivals per second from 0 to `until`, rising, with gaps from a Gamma distribution of this
    `shape`: 1 is Poisson, less comes in bursts. The gaps' standard deviation is `1 / sqrt(shape)` times their mean."""
    at, scale = 0.0, 1 / (rate * shape)
    while (at := at + rng.gammavariate(shape, scale)) < until:
        yield at


@dataclass(frozen=True)
class Quantiles:
    """Lengths with given quantiles: `points` are pairs (share, length), both rising, from share 0 to 1.

    Between two points the logarithm is spread evenly, so a median and a 90th percentile give a long tail, as in logs of
    real traffic.
    """

    points: tuple[tuple[float, float], ...]

    def draw(self, rng: Random) -> int:
        """One length, at least 1."""
        return max(1, round(self.at(rng.random())))

    def at(self, share: float) -> float:
        """The length that the given share does not exceed."""
        place = min(bisect_right([each for each, _ in self.points], share), len(self.points) - 1)
        (low, short), (high, long) = self.points[place - 1], self.points[place]
        return short * (long / short) ** ((share - low) / (high - low))


@dataclass(frozen=True)
class Around:
    """Lengths between (1 - spread) and (1 + spread) times `mean`, evenly."""

    mean: float
    spread: float = 0.5

    def draw(self, rng: Random) -> int:
        """One length, at least 1."""
        return max(1, round(rng.uniform(1 - self.spread, 1 + self.spread) * self.mean))


Lengths = Quantiles | Around


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
    is below 1 (see `arrivals`). `scale` multiplies all lengths, for small models. The same seed gives the same sessions."""

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
        rate, before = self.rate / self.requests_per_session, 0.0 if from_rest else self.lasts_s
        starts = arrivals(Random(f"{self.seed} arrivals"), rate, self.shape, before + seconds)
        for user, start in enumerate(starts):
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


@dataclass(frozen=True)
class AzureConversation2024(Trace):
    """Single requests with the lengths and bursts of an Azure service. Of prompts' contents nothing was published, so none
    share tokens: no policy gains by where they go, and what is left is the balance."""

    prompt: ClassVar[Quantiles] = Quantiles(((0, 150), (0.5, 928), (0.9, 3830), (0.99, 6683), (1, 7999)))
    output: ClassVar[Quantiles] = Quantiles(((0, 1), (0.5, 41), (0.9, 342), (0.99, 694), (1, 800)))
    shape: ClassVar[float] = 0.18945589918667938  # of Gamma: gives the published gaps

    def turns(self, rng: Random, make: SegmentMaker) -> tuple[Turn, ...]:
        prompt = make.new(self._length(self.prompt, rng))
        return (Turn((prompt,), make.new(self._length(self.output, rng))),)


class AzureCode2024(AzureConversation2024):
    prompt = Quantiles(((0, 120), (0.5, 1930), (0.9, 6251), (0.99, 7685), (1, 7743)))
    output = Quantiles(((0, 1), (0.5, 8), (0.9, 43), (0.99, 271), (1, 600)))
    shape = 0.21360227940584853


TRACES: dict[str, type[Trace]] = {
    "chat": Chat,
    "shared": SharedPrompts,
    "bursts": Bursts,
    "agents": Agents,
    "azure-conversation-2024": AzureConversation2024,
    "azure-code-2024": AzureCode2024,
}


def make_trace(name: str, rate: float, seed: int = 0, scale: float = 1.0) -> Trace:
    """The trace of this name. ValueError that names the field which is wrong."""
    if name not in TRACES:
        raise ValueError(f"trace={name!r}: must be one of {', '.join(TRACES)}")
    if not 0 < rate < math.inf:
        raise ValueError(f"rate={rate!r}: must be a number above 0")
    return TRACES[name](rate, seed, scale)
