"""Lengths: random numbers of tokens, by what was published of a distribution."""

import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from random import Random


@dataclass(frozen=True)
class Quantiles:
    """Lengths with given quantiles: `points` are pairs (share, length), both rising, from share 0 to 1.

    Between two points the logarithm is spread evenly, so a median and a 90th percentile give a long tail, as in logs of
    real traffic. ValueError when the points do not rise.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        shares, lengths = zip(*self.points, strict=True)
        if shares[0] != 0 or shares[-1] != 1 or any(a >= b for a, b in pairwise(shares)):
            raise ValueError(f"points={self.points}: their shares must rise from 0 to 1")
        if lengths[0] < 1 or any(a > b for a, b in pairwise(lengths)):
            raise ValueError(f"points={self.points}: their lengths must rise, from 1 or more")

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
