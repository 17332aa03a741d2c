"""Deadlines: finds the requests whose time is up."""

import heapq
from collections.abc import Container


class Deadlines:
    """Request ids, ordered by deadline. `pop_due` costs one comparison if no request is due.

    A request that ends in time keeps its entry, and the caller ignores it when it comes due. Once such entries may be the
    majority, `tidy` removes them, so memory depends on the number of live requests.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._tidy_at = 64

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, deadline: float, request_id: int) -> None:
        """Add a request that must end by `deadline`, in seconds of the engine's clock."""
        heapq.heappush(self._heap, (deadline, request_id))

    def pop_due(self, now: float) -> list[int]:
        """Remove and return all requests whose deadline has passed, earliest first."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heapq.heappop(self._heap)[1])
        return due

    def earliest(self, live: Container[int]) -> float | None:
        """The earliest deadline of a `live` request; None when there is none. Removes entries that come before it."""
        while self._heap and self._heap[0][1] not in live:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def tidy(self, live: Container[int]) -> None:
        """Remove the requests that are not `live`, if there may be many of them by now."""
        if len(self._heap) >= self._tidy_at:
            self._heap = [entry for entry in self._heap if entry[1] in live]
            heapq.heapify(self._heap)
            self._tidy_at = max(2 * len(self._heap), 64)
