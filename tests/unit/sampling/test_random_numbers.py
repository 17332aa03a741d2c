"""Random numbers from (seed, index): against SplitMix64 in plain integers, and what the sampler needs of them."""

import numpy as np
import pytest

from nanoinfer.requests.seeds import derived_seed, uniform

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def splitmix(state: int) -> int:
    """One output of SplitMix64 from `state`, in Python's unlimited integers, from the published code."""
    z = (state + GOLDEN) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_the_reference_of_this_test_is_splitmix64() -> None:
    assert splitmix(0) == 0xE220A8397B1DCDAF  # first output for state 0, as everywhere


@pytest.mark.parametrize("seed", [0, 1, 2, 12345, 2**32, 2**63 - 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("index", [0, 1, 2, 1000, 2**40])
def test_each_number_is_the_output_of_a_splitmix_stream_that_the_seed_selects(seed: int, index: int) -> None:
    state = (splitmix(seed) + index * GOLDEN) & MASK
    assert uniform([seed], [index]).tolist() == [(splitmix(state) >> 11) / 2**53]


def test_a_draw_is_the_same_alone_and_in_any_batch() -> None:
    seeds, indices = [3, 7, 3, 2**64 - 1] * 9, [0, 5, 1, 5, 2**40, 9] * 6  # a large batch is computed in another way
    together = uniform(seeds, indices)
    assert together.dtype == np.float64
    assert together.tolist() == [uniform([seed], [index])[0] for seed, index in zip(seeds, indices, strict=True)]
    assert uniform(seeds[::-1], indices[::-1]).tolist() == together[::-1].tolist()
    assert uniform([], []).shape == (0,)


def test_completion_zero_keeps_the_seed_and_the_others_have_their_own() -> None:
    for seed in (0, 1, 2**63, 2**64 - 1):
        derived = [derived_seed(seed, i) for i in range(50)]
        assert derived[0] == seed
        assert len(set(derived)) == 50
        assert all(isinstance(value, int) and 0 <= value < 2**64 for value in derived)
        uniform(derived, range(50))  # each is a seed that can be drawn from
    families = [derived_seed(seed, i) for seed in range(50) for i in range(1, 20)]
    assert len(set(families)) == len(families)
