"""PendingPrefixes: what a router has just sent where. Nobody has reported it yet, but it will be there."""

from collections import Counter
from heapq import heappop, heappush
from typing import NamedTuple

from nanoinfer.cluster.block_index import BlockSets, Hashes


class Pending(NamedTuple):
    """Blocks of one request on their way to the replica of `bit`; believed in until `end`."""

    bit: int
    hashes: Hashes
    end: float


class PendingPrefixes:
    """Cures the thundering herd. In a burst of requests with one new prefix, a router that waits for events sends each of
    them to another replica, and all of these compute the prefix. This remembers where the first one went.

    `sets`: the blocks that at least one request brings, in the form of the index's.
    """

    def __init__(self) -> None:
        self.sets = BlockSets()
        self._counts: Counter[tuple[int, int]] = Counter()  # of a bit and a block: how many requests bring it there
        self._of: dict[str, Pending] = {}  # by request id
        self._ends: list[tuple[float, str]] = []  # a heap; entries of requests that have changed since are skipped

    def __len__(self) -> int:
        return len(self._of)

    def add(self, request_id: str, bit: int, hashes: Hashes, end: float) -> None:
        """A request with these blocks has been sent to the replica of `bit`. What it brought before is forgotten."""
        self.forget(request_id)
        if not hashes:
            return
        self._of[request_id] = Pending(bit, hashes, end)
        heappush(self._ends, (end, request_id))
        for block in hashes:
            self._counts[bit, block] += 1
            self.sets.add(block, bit)

    def end_at(self, request_id: str, end: float) -> None:
        """Its blocks are there now, and are believed in until `end`, by when events will tell."""
        if (pending := self._of.get(request_id)) is not None:
            self._of[request_id] = pending._replace(end=end)
            heappush(self._ends, (end, request_id))

    def forget(self, request_id: str) -> None:
        """Its blocks will not come. Does nothing if none of them are expected."""
        pending = self._of.pop(request_id, None)
        if pending is None:
            return
        for block in pending.hashes:
            self._counts[pending.bit, block] -= 1
            if not self._counts[pending.bit, block]:
                del self._counts[pending.bit, block]
                self.sets.discard(block, pending.bit)

    def forget_replica(self, bit: int) -> None:
        """The replica of `bit` is gone. It looks at all requests."""
        for request_id in [each for each, pending in self._of.items() if pending.bit == bit]:
            self.forget(request_id)

    def expire(self, now: float) -> None:
        """Forget what should be there by now."""
        while self._ends and self._ends[0][0] <= now:
            end, request_id = heappop(self._ends)
            pending = self._of.get(request_id)
            if pending is not None and pending.end == end:
                self.forget(request_id)
