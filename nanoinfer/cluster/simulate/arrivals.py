"""When sessions begin: as Poisson would have them, or in bursts."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Arrivals:
    """`rate` arrivals per second, with gaps from a Gamma distribution of this `shape`: 1 is Poisson, less comes in bursts.

    The gaps' standard deviation is `1 / sqrt(shape)` times their mean.
    """

    rate: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        for name in ("rate", "shape"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ValueError(f"{name}={value!r}: must be a number above 0")

    def times(self, rng: Random, until: float) -> Iterator[float]:
        """The times of arrivals from 0 to `until`, rising."""
        at, scale = 0.0, 1 / (self.rate * self.shape)
        while (at := at + rng.gammavariate(self.shape, scale)) < until:
            yield at


def shape_of(median_over_mean: float) -> float:
    """The shape whose gaps have this median, as a share of their mean. ValueError unless it is in 0.001..0.69.

    The median has no formula, so it is looked for: by halving, with the distribution function's power series.
    """
    if not 0.001 <= median_over_mean <= 0.69:
        raise ValueError(f"median_over_mean={median_over_mean!r}: must be in 0.001..0.69 (0.69 is Poisson's)")
    low, high = 0.05, 1.0
    for _ in range(60):
        shape = (low + high) / 2
        below = _share_below(shape, median_over_mean * shape)
        low, high = (low, shape) if below < 0.5 else (shape, high)
    return (low + high) / 2


def _share_below(shape: float, x: float) -> float:
    """The share of a Gamma distribution (scale 1) below `x`."""
    term = total = 1 / shape
    for n in range(1, 200):
        term *= x / (shape + n)
        total += term
    return total * math.exp(shape * math.log(x) - x - math.lgamma(shape))
