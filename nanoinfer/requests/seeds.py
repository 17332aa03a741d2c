"""Random numbers as a function of (seed, index), and the seeds of completions. There is no state, so a request draws the
same numbers in any batch."""

from collections.abc import Sequence

import numpy as np

GOLDEN, BITS = np.uint64(0x9E3779B97F4A7C15), 0xFFFFFFFFFFFFFFFF
FEW = 16


def _mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser (Steele et al., 2014): uint64 → uint64, where every input bit affects every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _mix_one(x: int) -> int:
    """Optimisation: `_mix` of one number. For a few, numpy takes ten times as long."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & BITS
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & BITS
    return x ^ (x >> 31)


def uniform(seeds: Sequence[int], indices: Sequence[int]) -> np.ndarray:
    """One float64 in [0, 1) for each pair (seed, index): number `index` of the stream that `seed` defines."""
    return (_hash_pairs(seeds, indices) >> np.uint64(11)) * 2.0**-53


def derived_seed(seed: int, index: int) -> int:
    """The seed of completion `index` of a request with the given `seed`. Completion 0 has `seed` itself."""
    return seed if index == 0 else int(_hash_pairs([seed ^ 0x5851F42D4C957F2D], [index])[0])


def _hash_pairs(seeds: Sequence[int], indices: Sequence[int]) -> np.ndarray:
    """64 random bits (uint64) for each pair (seed, index)."""
    if len(seeds) <= FEW:
        golden, pairs = int(GOLDEN), zip(seeds, indices, strict=True)
        hashes = [_mix_one(_mix_one(seed + golden & BITS) + (index + 1) * golden & BITS) for seed, index in pairs]
        return np.array(hashes, dtype=np.uint64)
    seed, index = np.array(seeds, dtype=np.uint64), np.array(indices, dtype=np.uint64)
    with np.errstate(over="ignore"):
        return _mix(_mix(seed + GOLDEN) + (index + np.uint64(1)) * GOLDEN)
