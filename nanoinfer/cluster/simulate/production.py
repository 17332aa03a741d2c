"""Traffic with the published statistics of production (published_traffic.py has them, with their sources)."""

from dataclasses import dataclass
from random import Random
from typing import ClassVar

from nanoinfer.cluster.simulate import published_traffic as published
from nanoinfer.cluster.simulate.arrivals import shape_of
from nanoinfer.cluster.simulate.lengths import Lengths, Quantiles
from nanoinfer.cluster.simulate.sessions import Turn
from nanoinfer.cluster.simulate.trace import SegmentMaker, Trace


@dataclass(frozen=True)
class Azure(Trace):
    """Single requests with the lengths and bursts of an Azure service. Of prompts' contents nothing was published, so none
    share tokens: no policy gains by where they go, and what is left is the balance."""

    service: ClassVar[published.Service]

    @property
    def requests_per_session(self) -> float:
        return 1.0

    def turns(self, rng: Random, make: SegmentMaker) -> tuple[Turn, ...]:
        prompt = make.new(self._length(self.service.prompt, rng))
        return (Turn((prompt,), make.new(self._length(self.service.output, rng))),)


def azure(name: str, service_: published.Service) -> type[Azure]:
    members = {"service": service_, "own_shape": shape_of(service_.median_gap), "__doc__": Azure.__doc__}
    return type(name, (Azure,), members)


@dataclass(frozen=True)
class Mooncake(Trace):
    """Long documents that are asked about again: `more` is the probability of one more turn. With these figures,
    prompts and outputs are as long as published, and an unlimited cache has half of the prompt tokens."""

    more: float = 0.465
    document: ClassVar[Lengths] = Quantiles(((0, 260), (0.5, 3800), (0.9, 11800), (0.99, 35000), (1, 90000)))
    question: ClassVar[Lengths] = Quantiles(((0, 20), (0.5, 250), (0.9, 1200), (1, 6000)))
    answer: ClassVar[Lengths] = Quantiles(((0, 5), (0.5, 65), (0.9, 420), (1, 1600)))
    think_s: float = 30.0

    @property
    def requests_per_session(self) -> float:
        return 1 / (1 - self.more)

    @property
    def lasts_s(self) -> float:
        return 4 * self.think_s

    def turns(self, rng: Random, make: SegmentMaker) -> tuple[Turn, ...]:
        shared = max(1, round(published.MOONCAKE_SHARED * self.scale))
        history = [make.shared("mooncake", self.seed, shared), make.new(self._length(self.document, rng))]
        found = list[Turn]()
        while True:
            history.append(make.new(self._length(self.question, rng)))
            answer = make.new(self._length(self.answer, rng))
            think = rng.expovariate(1 / self.think_s) if found else 0.0
            found.append(Turn(tuple(history), answer, think, (len(found) - 1,) if found else ()))
            history.append(answer)
            if rng.random() >= self.more:
                return tuple(found)
