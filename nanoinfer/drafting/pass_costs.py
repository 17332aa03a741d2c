"""PassCosts: how long a pass of so many rows takes, as measured while serving."""

from bisect import bisect_left, insort
from collections import deque

SKIPPED = 1  # the first pass of a size may be recorded, which takes long
ENOUGH = 3  # how many measurements make a size known
RECENT = 9  # how many measurements are kept
UNKNOWN_SLOPE = 0.05  # what twice the rows are hoped to cost where nothing was measured, as a share of the pass


class PassCosts:
    """What passes have taken lately, by their number of rows. A DECODE of B requests has B rows, a VERIFY one for each
    token: both are the same computation, so each tells about the other.

    Of the last few measurements the lower quartile counts: whatever disturbs a pass makes it longer.
    """

    def __init__(self) -> None:
        self._sizes: list[int] = []  # those that are known, in order
        self._seconds: dict[int, float] = {}
        self._measured: dict[int, deque[float]] = {}
        self._skipped: dict[int, int] = {}
        self._newest: dict[int, int] = {}  # when each size was measured last

    @property
    def largest(self) -> int:
        """The most rows that are known; 0 at first."""
        return self._sizes[-1] if self._sizes else 0

    def knows(self, rows: int) -> bool:
        """Whether so many rows are within what was measured."""
        return bool(self._sizes) and self._sizes[0] <= rows <= self._sizes[-1]

    def add(self, rows: int, seconds: float, now: int = 0) -> None:
        """A pass of so many rows has taken so long. `now`: its number."""
        skipped = self._skipped.get(rows, 0)
        if skipped < SKIPPED:
            self._skipped[rows] = skipped + 1
            return
        measured = self._measured.setdefault(rows, deque(maxlen=RECENT))
        measured.append(seconds)
        self._newest[rows] = now
        if len(measured) >= ENOUGH:
            if rows not in self._seconds:
                insort(self._sizes, rows)
            self._seconds[rows] = sorted(measured)[len(measured) // 4]

    def forget(self, before: int) -> None:
        """Forget the sizes that were last measured before pass number `before`: if something had disturbed them then, they
        might never be tried again."""
        for rows in [rows for rows, newest in self._newest.items() if newest < before]:
            del self._measured[rows], self._newest[rows]
            if self._seconds.pop(rows, None) is not None:
                self._sizes.remove(rows)

    def seconds(self, rows: int) -> float:
        """How long a pass of so many rows takes: between two sizes that are known, on the line between them; beyond them,
        hopeful, so that it will be tried and measured. 0 as long as nothing is known."""
        if rows in self._seconds:
            return self._seconds[rows]
        at = bisect_left(self._sizes, rows)
        below = self._sizes[at - 1] if at else None
        above = self._sizes[at] if at < len(self._sizes) else None
        if below is None or above is None:
            known = above if below is None else below
            if known is None:
                return 0.0
            return self._seconds[known] * max(1.0 + UNKNOWN_SLOPE * (rows - known) / known, 0.5)
        share = (rows - below) / (above - below)
        return (1 - share) * self._seconds[below] + share * self._seconds[above]
