"""The radix cache, on small trees: the forms that tokens may have, what is refused, and which nodes grow."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.fakes import counted_calls
from tests.helpers.trees import make_cache, put, shape, snapshot

# --- match and insert --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [list, tuple, np.array, torch.tensor, lambda t: torch.tensor(t, dtype=torch.int32)])
def test_tokens_may_be_a_sequence_an_array_or_a_tensor(form: Callable[[list[int]], Any]) -> None:
    cache = make_cache()
    slots = cache.token_to_kv_pool.alloc(3)
    assert cache.insert(form([1, 2, 3]), form(slots.tolist())) == 0
    assert cache.match_prefix(form([1, 2, 4])).indices.tolist() == slots[:2].tolist()
    assert cache.peek_prefix(form([1, 2, 4]))[0] == 2


def test_a_short_prefix_does_not_keep_a_long_sequence_in_memory() -> None:
    cache = make_cache(5000)
    put(cache, range(5000))
    upper = cache.match_prefix([0, 1]).last_node
    assert cache.evict(1) == 4998
    for array in (upper.key, upper.value):
        assert array.size == 2
        assert array.base is None, "a view of the whole"


def test_the_tree_does_not_alias_what_callers_hold() -> None:
    cache = make_cache()
    tokens, slots = np.array([1, 2, 3]), np.array([4, 5, 6], dtype=np.int32)
    cache.token_to_kv_pool.alloc(8)
    cache.insert(tokens, slots)
    tokens[:], slots[:] = 9, 9
    match = cache.match_prefix([1, 2, 3])
    assert match.indices.tolist() == [4, 5, 6]
    match.indices[:] = 9
    assert cache.match_prefix([1, 2, 3]).indices.tolist() == [4, 5, 6]


@pytest.mark.parametrize(
    ("last_two", "message"),
    [
        ([6, 64], r"indices\[3\]: slot 64: outside 0\.\.63"),
        ([-1, 6], r"indices\[2\]: slot -1: outside 0\.\.63"),
        ([6, 2**32 + 7], r"indices\[3\]: slot 4294967303: outside 0\.\.63"),
        ([6, 20], r"indices\[3\]: slot 20: already free"),
        ([6, 6], r"indices\[3\]: slot 6: given twice"),
        ([1, 6], r"indices\[2\]: slot 1: in a radix tree already"),
        ([6, 4], r"indices\[3\]: slot 4: in a radix tree already"),
    ],
)
@pytest.mark.parametrize("form", [list, np.array, torch.tensor])
def test_a_slot_that_cannot_become_the_trees_is_refused_before_the_tree_changes(
    form: Callable[[list[int]], Any], last_two: list[int], message: str
) -> None:
    cache = make_cache()
    put(cache, [1, 2, 3, 4])
    put(cache, [9])  # slot 4
    cache.token_to_kv_pool.alloc(3)  # slots 5, 6 and 7 are the caller's
    before = snapshot(cache)
    with pytest.raises(ValueError, match=message):
        cache.insert([1, 2, 7, 8], form([5, 20, *last_two]))  # what it gives for tokens 1 and 2 is not looked at
    assert snapshot(cache) == before
    assert cache.insert([1, 2, 7, 8], form([5, 20, 7, 6])) == 2
    cache.check_integrity()


# --- pages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ([0, 1, 2, 3, 4, 5, 7, 8], r"indices\[6\]: slot 7: not the start of a page of 4"),
        ([0, 1, 4, 5, 2, 3, 6, 7], r"indices\[2\]: slot 4: not in its place in a page of 4"),
        ([4, 5, 6, 7, 1, 0, 2, 3], r"indices\[4\]: slot 1: not in its place in a page of 4"),
    ],
)
def test_slots_that_could_not_leave_page_by_page_are_refused(slots: list[int], message: str) -> None:
    cache = make_cache(16, 4)
    cache.token_to_kv_pool.alloc(12)
    with pytest.raises(ValueError, match=message):
        cache.insert(range(8), slots)
    assert cache.total_size() == 0
    cache.insert(range(8), [8, 9, 10, 11, 4, 5, 6, 7])
    cache.match_prefix(range(4))
    assert (cache.evict(1), cache.evict(1)) == (4, 4)


# --- extra_key, disable ------------------------------------------------------------------------------------------


def test_a_disabled_cache_takes_and_finds_nothing() -> None:
    cache = make_cache(disable=True)
    known, slots = put(cache, [1, 2, 3])
    assert known == 0
    assert len(slots) == 3
    match = cache.match_prefix([1, 2, 3])
    assert match.indices.tolist() == []
    assert match.last_node is cache.root
    assert cache.peek_prefix([1, 2, 3]) == (0, cache.root)
    assert cache.evict(5) == 0
    assert cache.total_size() == 0
    assert cache.token_to_kv_pool.available_size() == 64


# --- peek, version, grow -----------------------------------------------------------------------------------------


def test_a_node_that_is_locked_shared_or_elsewhere_does_not_grow() -> None:
    cache = make_cache()
    put(cache, [1, 2, 3])
    leaf = cache.match_prefix([1, 2, 3]).last_node
    cache.inc_lock_ref(leaf)
    put(cache, [1, 2, 3, 4], grow=leaf)
    assert shape(cache) == [(1, [1, 2, 3]), (2, [4])]
    cache.dec_lock_ref(leaf)
    put(cache, [1, 2, 3, 7], grow=leaf)  # has a child
    assert shape(cache) == [(1, [1, 2, 3]), (2, [4]), (2, [7])]
    put(cache, [8, 9], grow=leaf)  # does not follow on it
    put(cache, [6], grow=cache.root)
    assert shape(cache) == [(1, [1, 2, 3]), (2, [4]), (2, [7]), (1, [8, 9]), (1, [6])]
    cache.check_integrity()


# --- cost --------------------------------------------------------------------------------------------------------


def test_matching_costs_the_same_among_a_thousand_children_as_among_ten() -> None:
    def calls(children: int) -> int:
        cache = make_cache(2_002)
        for first in range(children):
            put(cache, [first, 7])
        with counted_calls() as counted:
            assert len(cache.match_prefix([children - 1, 7, 3]).indices) == 2
            assert cache.peek_prefix([children // 2, 7])[0] == 2
            assert len(cache.match_prefix([children]).indices) == 0
        return counted.total()

    assert calls(1_000) == calls(10)
