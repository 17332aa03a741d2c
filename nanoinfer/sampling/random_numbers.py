"""Random numbers as a function of (seed, index). There is no state, so a request draws the same numbers in any batch."""

from collections.abc import Sequence

import numpy as np

from nanoinfer.requests.seeds import hash_pairs


def uniform(seeds: Sequence[int], indices: Sequence[int]) -> np.ndarray:
    """One float64 in [0, 1) for each pair (seed, index): number `index` of the stream that `seed` defines."""
    return (hash_pairs(seeds, indices) >> np.uint64(11)) * 2.0**-53
