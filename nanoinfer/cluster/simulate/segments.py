"""Segments: prompts as chains of parts, so that two prompts share tokens exactly where they share their first parts."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

VOCAB_SIZE = 32_000
GOLDEN, MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens that is always used as a whole: a system prompt, a question, an answer. Equal ids: equal tokens."""

    id: int
    length: int

    def tokens(self, vocab_size: int = VOCAB_SIZE) -> np.ndarray:
        """Its token ids, int64 [length], in 0..vocab_size - 1: the same in every process."""
        state = np.arange(1, self.length + 1, dtype=np.uint64) * np.uint64(GOLDEN) + np.uint64(mixed(self.id))
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((state ^ (state >> np.uint64(31))) % np.uint64(vocab_size)).astype(np.int64)


def mixed(x: int) -> int:
    """64 bits, each of which depends on all bits of `x` (SplitMix64's finaliser)."""
    x = (x + GOLDEN) & MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def total_length(segments: Iterable[Segment]) -> int:
    """How many tokens they have together."""
    return sum(segment.length for segment in segments)


def all_tokens(segments: Iterable[Segment], vocab_size: int = VOCAB_SIZE) -> np.ndarray:
    """The token ids of all of them, one after another, int64."""
    parts = [segment.tokens(vocab_size) for segment in segments]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def chain(segments: Iterable[Segment]) -> list[int]:
    """A number for each of them that stands for it and all before it: equal numbers, equal tokens up to its end."""
    found, above = [], 0
    for segment in segments:
        above = mixed(above ^ segment.id)
        found.append(above)
    return found
