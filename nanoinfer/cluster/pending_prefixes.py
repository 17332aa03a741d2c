"""PendingPrefixes: what a router has just sent where. Nobody has reported it yet, but it will be there."""

from bisect import bisect_left
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from nanoinfer.cluster.block_sets import BlockSets, Hashes


class Pending(NamedTuple):
    """Blocks of one request on their way to the replica of `bit`; believed in until `end`."""

    bit: int
    hashes: Hashes
    end: float


@dataclass(slots=True)
class Stretch:
    """Blocks that follow each other and are on their way together. `counts`: the bit of a replica → how many requests bring
    them there. `following`: what some of these bring behind them, by first block."""

    hashes: Hashes
    counts: dict[int, int]
    following: "dict[int, Stretch]" = field(default_factory=dict)

    def split(self, length: int) -> None:
        """Keep the first `length` blocks; the others follow."""
        rest = Stretch(self.hashes[length:], dict(self.counts), self.following)
        self.hashes, self.following = self.hashes[:length], {rest.hashes[0]: rest}


class PendingPrefixes:
    """Cures the herd. In a burst of requests with one new prefix, a router that waits for events sends each of them to
    another replica, and all of these compute the prefix. This remembers where the first one went.

    It is a radix tree: blocks that only one request brings, as most do, take up one Stretch, however many they are.
    """

    def __init__(self) -> None:
        self._stretches: dict[int, Stretch] = {}  # by first block
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
        stretches = self._stretches
        while hashes and (stretch := stretches.get(hashes[0])) is not None:
            shared = common_length(stretch.hashes, hashes)
            if shared < len(stretch.hashes):
                stretch.split(shared)
            stretch.counts[bit] = stretch.counts.get(bit, 0) + 1
            stretches, hashes = stretch.following, hashes[shared:]
        if hashes:
            stretches[hashes[0]] = Stretch(hashes, {bit: 1})

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
        bit, hashes, stretches = pending.bit, pending.hashes, self._stretches
        while hashes:
            stretch = stretches[hashes[0]]
            stretch.counts[bit] -= 1
            if not stretch.counts[bit]:
                del stretch.counts[bit]
            if not stretch.counts:  # so nobody brings what follows, either
                del stretches[hashes[0]]
                return
            stretches, hashes = stretch.following, hashes[len(stretch.hashes) :]

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

    def sets_of(self, hashes: Hashes) -> BlockSets | None:
        """Which of a prompt's blocks are on their way where, in the form of the index's; None if none of them are."""
        if self._stretches.keys().isdisjoint(hashes):
            return None
        found = BlockSets()
        for start, first in enumerate(hashes):
            stretches, left = self._stretches, hashes[start:] if first in self._stretches else ()
            while left and (stretch := stretches.get(left[0])) is not None:
                shared, bits = common_length(stretch.hashes, left), sum(stretch.counts)
                for block in left[:shared]:
                    found.add(block, bits)
                stretches, left = stretch.following, left[shared:] if shared == len(stretch.hashes) else ()
        return found


def common_length(one: Hashes, other: Hashes) -> int:
    """How many leading blocks are equal. A block's hash covers what comes before it, so behind a difference nothing is."""
    return bisect_left(range(min(len(one), len(other))), True, key=lambda at: one[at] != other[at])
