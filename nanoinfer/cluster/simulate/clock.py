"""Clock: simulated time, and what happens when."""

import heapq
import math
from collections.abc import Callable
from itertools import count


class Clock:
    """Seconds since the start, and a heap of calls that are due. Calls at the same time happen in the order of `at`.

    Nothing waits: `run` makes one call after another and sets `now` to when it was due. A clock that is called returns
    `now`, so it can be given wherever the engine takes a clock.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._calls: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()

    def __call__(self) -> float:
        return self.now

    def at(self, seconds: float, call: Callable[[], object]) -> None:
        """Have `call` made at this time. ValueError if that is past, or no time."""
        if not self.now <= seconds < math.inf:
            raise ValueError(f"seconds={seconds!r}: must be a time from now ({self.now}) on")
        heapq.heappush(self._calls, (seconds, next(self._order), call))

    def after(self, seconds: float, call: Callable[[], object]) -> None:
        """Have `call` made in so many seconds, at least 0."""
        self.at(self.now + seconds, call)

    def run(self, until: float = math.inf) -> None:
        """Make all calls that are due before `until`, including those that are added meanwhile."""
        while self._calls and self._calls[0][0] < until:
            self.now, _, call = heapq.heappop(self._calls)
            call()
