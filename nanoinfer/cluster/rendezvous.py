"""Rendezvous hashing: all routers agree, without a word between them, and a new replica moves only its own share."""

from hashlib import blake2b

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # Knuth's multiplier: each bit changes about half of those above it


def salt(replica: str) -> int:
    """A replica's part of each hash: 64 bits of its name, the same on every machine."""
    return int.from_bytes(blake2b(replica.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def rendezvous(key: int, salts: np.ndarray) -> int:
    """The place of the replica that `key` (64 bits) belongs to: that of the largest hash of the key and a salt (Thaler and
    Ravishankar, 1996). If one of the salts (uint64 `[n]`) goes, the keys of the others stay where they are."""
    mixed = salts ^ np.uint64(key)
    mixed *= GOLDEN
    return int(mixed.argmax())
