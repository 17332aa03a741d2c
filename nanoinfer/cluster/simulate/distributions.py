"""Random times between arrivals, and random numbers of tokens."""

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Arrivals:
    """`rate` arrivals per second, with gaps from a Gamma distribution of this `shape`: 1 is Poisson, less comes in bursts.

    The gaps' standard deviation is `1 / sqrt(shape)` times their mean. ValueError if the rate is not above 0.
    """

    rate: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.rate < math.inf:
            raise ValueError(f"rate={self.rate!r}: must be a number above 0")

    def times(self, rng: Random, until: float) -> Iterator[float]:
        """The times of arrivals from 0 to `until`, rising."""
        at, scale = 0.0, 1 / (self.rate * self.shape)
        while (at := at + rng.gammavariate(self.shape, scale)) < until:
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

    def scaled(self, factor: float, most: float = math.inf) -> "Quantiles":
        """The same shape with all lengths multiplied, but at least 1 and at most `most`."""
        return Quantiles(tuple((share, min(max(length * factor, 1.0), most)) for share, length in self.points))


@dataclass(frozen=True)
class Around:
    """Lengths between (1 - spread) and (1 + spread) times `mean`, evenly."""

    mean: float
    spread: float = 0.5

    def draw(self, rng: Random) -> int:
        """One length, at least 1."""
        return max(1, round(rng.uniform(1 - self.spread, 1 + self.spread) * self.mean))


Lengths = Quantiles | Around
