"""Rendezvous hashing: all who ask agree, without a word between them, and a new replica moves only its own share."""

from collections.abc import Iterable
from hashlib import blake2b


def rendezvous(key: int, replicas: Iterable[str]) -> str:
    """The one of `replicas` that `key` (64 bits) belongs to: the one with the largest hash of both (Thaler and Ravishankar,
    1996). If one of them goes, the keys of the others stay where they are."""
    prefix = key.to_bytes(8, "little")
    return max(replicas, key=lambda replica: blake2b(prefix + replica.encode(), digest_size=8).digest())
