"""ReplicaTable: what a choice weighs of each replica, side by side, so that numpy looks at a thousand of them at once."""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from nanoinfer.cluster.replica_queue import Sums

FEWEST = 8  # places at first
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # Knuth's multiplier: each bit changes about half of those above it
NOTHING, NOBODY = (0.0, 0.0, 0.0), (np.inf, np.inf, 0.0)  # of Sums: nothing to do; infinitely much


def salt(replica: str) -> int:
    """A replica's part of each hash: 64 bits of its name, the same on every machine."""
    return int.from_bytes(blake2b(replica.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def rendezvous(key: int, salts: np.ndarray) -> int:
    """The place of the replica that `key` (64 bits) belongs to: that of the largest hash of the key and a salt (Thaler and
    Ravishankar, 1996). If one of the salts (uint64 `[n]`) goes, the keys of the others stay where they are. All routers
    agree, without a word between them, and a new replica moves only its own share."""
    mixed = salts ^ np.uint64(key)
    mixed *= GOLDEN
    return int(mixed.argmax())


class ReplicaTable:
    """A replica keeps its place, which is the number of its bit in the index, until it goes.

    `names`: by place, "" for nobody. `salts` [places]: see `rendezvous`. `doubted`: by place, how much each replica that is
    not trusted fully is trusted. `hold_until`: when the first sums become obsolete.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.salts = np.empty(0, dtype=np.uint64)
        self.doubted: dict[int, float] = {}
        self.hold_until = np.inf
        self._all = 0  # the bits of all places that are taken
        self._sums = np.empty((len(NOBODY), 0))
        self._grow(FEWEST)

    def add(self, replica: str) -> int:
        """A new replica, which has nothing to do and is trusted. Returns its place: the first one that is free."""
        if "" not in self.names:
            self._grow(len(self.names))
        place = self.names.index("")
        self.names[place], self.salts[place], self._sums[:, place] = replica, salt(replica), NOTHING
        self._all |= 1 << place
        return place

    def remove(self, place: int) -> None:
        """Its replica is gone."""
        self.names[place], self._sums[:, place] = "", NOBODY
        self._all &= ~(1 << place)
        self.doubted.pop(place, None)

    def set_sums(self, place: int, sums: Sums) -> None:
        """The replica there has so much to do."""
        self._sums[:, place] = sums[:3]
        self.hold_until = min(self.hold_until, sums.holds_until)

    def ahead(self, output_tokens: float, now: float) -> np.ndarray:
        """Seconds by which the work at each place delays a request, until its last of so many output tokens (see Sums)."""
        ends, at_least, slope = self._sums
        ahead = ends - now
        np.maximum(ahead, at_least, out=ahead)
        ahead += output_tokens * slope
        return ahead

    def by_bits(self, values: Sequence[tuple[int, float]], otherwise: float) -> np.ndarray:
        """float64 `[places]`: the value that comes last with a place's bit. `values`: `(bits, value)`."""
        found = np.empty(len(self.names))
        found.fill(otherwise)
        for bits, value in values:
            if bits == self._all:
                found.fill(value)
            elif bits & (bits - 1):
                octets = np.frombuffer(bits.to_bytes(len(self.names) // 8, "little"), dtype=np.uint8)
                np.putmask(found, np.unpackbits(octets, bitorder="little").view(np.bool_), value)
            else:  # of one place
                found[bits.bit_length() - 1] = value
        return found

    def _grow(self, more: int) -> None:
        self.names += [""] * more
        self._sums = np.append(self._sums, np.tile(np.array(NOBODY)[:, None], more), axis=1)
        self.salts = np.append(self.salts, np.zeros(more, dtype=np.uint64))
