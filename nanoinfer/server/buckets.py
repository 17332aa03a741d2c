"""Buckets: a histogram that costs next to nothing to add to, since every token is added to one."""

from bisect import bisect_left
from collections.abc import Sequence

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)


class Buckets:
    """How often values were at most each of `bounds` (in ascending order), their number and their sum."""

    def __init__(self, bounds: Sequence[float] = SECONDS):
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        """Add `value`, `times` times."""
        self._counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def cumulative(self) -> list[tuple[str, float]]:
        """What Prometheus wants: (bound, how many values were at most that), the last one for all values."""
        total, rows = 0, []
        for bound, count in zip((*map(str, map(float, self.bounds)), "+Inf"), self._counts, strict=True):
            total += count
            rows.append((bound, float(total)))
        return rows
