"""The radix cache, by hand on small trees."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch

from nanoinfer.cache import radix_cache
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.radix_cache import RadixCache, common_prefix_len
from nanoinfer.cache.tree_node import TreeNode
from tests.helpers.trees import make_cache, put


def shape(cache: RadixCache) -> list[tuple[int, list[int]]]:
    """The tree as (depth, tokens) lines."""
    return [(depth, node.key.tolist()) for depth, node in cache.nodes()]


def snapshot(cache: RadixCache) -> list[object]:
    """Everything that an operation could change."""
    fields = [name for name in TreeNode.__slots__ if name not in ("children", "key", "value", "parent")]
    lines: list[object] = [cache.insertions, cache.evictable_size(), cache.protected_size()]
    for depth, node in cache.nodes():
        values = [getattr(node, name) for name in fields]
        lines.append((depth, id(node), id(node.parent), node.key.tolist(), node.value.tolist(), values))
    return [*lines, cache.token_to_kv_pool.free_slots().tolist()]


def evicted_order(cache: RadixCache) -> list[list[int]]:
    """Evict everything, leaf by leaf; returns the tokens of each in the order they went."""
    order = []
    while cache.evictable_size():
        before = {id(node): node for _, node in cache.nodes()}
        cache.evict(1)
        remaining = {id(node) for _, node in cache.nodes()}
        order += [node.key.tolist() for key, node in before.items() if key not in remaining]
    return order


# --- match and insert --------------------------------------------------------------------------------------------


def test_an_empty_tree_matches_nothing() -> None:
    cache = make_cache()
    match = cache.match_prefix([1, 2, 3])
    assert match.indices.shape == (0,)
    assert match.indices.dtype == torch.int32
    assert match.last_node is cache.root


def test_what_was_inserted_is_found_with_its_slots() -> None:
    cache = make_cache()
    known, slots = put(cache, [5, 6, 7, 8])
    assert known == 0
    match = cache.match_prefix([5, 6, 7, 8, 9])
    assert match.indices.dtype == torch.int32
    assert match.indices.tolist() == slots
    assert match.last_node.key.tolist() == [5, 6, 7, 8]
    indices, last_node = cache.match_prefix([5, 6, 7, 8])
    assert (indices.tolist(), last_node) == (slots, match.last_node)


@pytest.mark.parametrize("form", [list, tuple, np.array, torch.tensor, lambda t: torch.tensor(t, dtype=torch.int32)])
def test_tokens_may_be_a_sequence_an_array_or_a_tensor(form: Callable[[list[int]], Any]) -> None:
    cache = make_cache()
    slots = cache.token_to_kv_pool.alloc(3)
    assert slots is not None
    assert cache.insert(form([1, 2, 3]), form(slots.tolist())) == 0
    assert cache.match_prefix(form([1, 2, 4])).indices.tolist() == slots[:2].tolist()
    assert cache.peek_prefix(form([1, 2, 4]))[0] == 2


def test_a_match_inside_a_node_splits_it_and_leaves_the_sizes() -> None:
    cache = make_cache()
    _, slots = put(cache, [1, 2, 3, 4, 5])
    match = cache.match_prefix([1, 2, 9])
    assert match.indices.tolist() == slots[:2]
    assert match.last_node.key.tolist() == [1, 2]
    assert shape(cache) == [(1, [1, 2]), (2, [3, 4, 5])]
    assert (cache.total_size(), cache.evictable_size(), cache.protected_size()) == (5, 5, 0)
    assert cache.match_prefix([1, 2, 3, 4, 5]).indices.tolist() == slots
    cache.check_integrity()


def test_a_short_prefix_does_not_keep_a_long_sequence_in_memory() -> None:
    cache = make_cache(5000)
    put(cache, range(5000))
    upper = cache.match_prefix([0, 1]).last_node
    assert cache.evict(1) == 4998
    for array in (upper.key, upper.value):
        assert array.size == 2
        assert array.base is None, "a view of the whole"


def test_insert_says_how_much_was_known_and_keeps_the_slots_it_had() -> None:
    cache = make_cache()
    _, first = put(cache, [1, 2, 3, 4])
    known, second = put(cache, [1, 2, 7, 8, 9])
    assert known == 2
    assert cache.match_prefix([1, 2, 7, 8, 9]).indices.tolist() == first[:2] + second[2:]
    assert cache.match_prefix([1, 2, 3, 4]).indices.tolist() == first
    assert shape(cache) == [(1, [1, 2]), (2, [3, 4]), (2, [7, 8, 9])]
    assert cache.total_size() == 7
    assert put(cache, [1, 2, 7, 8, 9])[0] == 5
    assert put(cache, [1, 2])[0] == 2
    assert cache.total_size() == 7


def test_a_prefix_of_what_is_there_and_a_continuation_need_no_second_copy() -> None:
    cache = make_cache()
    put(cache, [1, 2, 3])
    assert put(cache, [1, 2])[0] == 2
    assert put(cache, [1, 2, 3, 4, 5])[0] == 3
    assert shape(cache) == [(1, [1, 2]), (2, [3]), (3, [4, 5])]
    assert cache.token_to_kv_pool.available_size() == 64 - 5


def test_the_worked_example_splits_sixteen_tokens_at_seven() -> None:
    cache = make_cache()
    prompt = [1, 29871, 29896, 29906, 29941, 29946, 29945]
    put(cache, [*prompt, *range(100, 109)])
    match = cache.match_prefix([*prompt, 29896, 29906, 29941, 29946])
    assert match.indices.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert [len(node) for _, node in cache.nodes()] == [7, 9]


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


def test_the_empty_sequence_is_a_prefix_of_everything() -> None:
    cache = make_cache()
    put(cache, [1, 2])
    assert cache.match_prefix([]).last_node is cache.root
    assert cache.insert([], []) == 0
    assert cache.peek_prefix([]) == (0, cache.root)
    assert cache.total_size() == 2


def test_as_many_slots_as_tokens_or_a_refusal() -> None:
    cache = make_cache()
    with pytest.raises(ValueError, match="indices: 2 slots for 3 tokens"):
        cache.insert([1, 2, 3], [0, 1])
    assert cache.total_size() == 0


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


@pytest.mark.parametrize(
    ("page_size", "indices", "message"),
    [
        (1, [5, 6, 5, 7], r"indices\[2\]: slot 5: given twice"),
        (1, [0, 6, 7, 6], r"indices\[3\]: slot 6: given twice"),
        (2, [0, 1, 6, 7, 6], r"indices\[2\]: slot 6: given twice"),  # the last one is of an incomplete page
        (2, [6, 7, 6, 7], r"indices\[2\]: slot 6: given twice"),
    ],
)
def test_a_slot_that_the_caller_keeps_does_not_become_the_trees_as_well(
    page_size: int, indices: list[int], message: str
) -> None:
    cache = make_cache(page_size=page_size)
    put(cache, [1, 2])
    cache.token_to_kv_pool.alloc(6)  # slots 2 to 7 are the caller's
    before = snapshot(cache)
    with pytest.raises(ValueError, match=message):
        cache.insert([1, 2, 3, 4, 5][: len(indices)], indices)
    assert snapshot(cache) == before
    assert cache.insert([1, 2, 3, 4], [0, 1, 6, 7]) == 2  # the tree's slots for what it knows are no second owner
    cache.check_integrity()


def test_slots_that_have_left_the_tree_may_come_back() -> None:
    cache = make_cache(4)
    for leave in (lambda: cache.evict(4), cache.reset, lambda: cache.evict(4)):
        assert put(cache, [1, 2, 3, 4]) == (0, [0, 1, 2, 3])
        leave()
        assert cache.token_to_kv_pool.available_size() == 4


def test_two_trees_of_one_pool_do_not_get_the_same_slot() -> None:
    cache = make_cache()
    other = RadixCache(cache.req_to_token_pool, cache.token_to_kv_pool)
    put(cache, [1, 2])
    assert cache.token_to_kv_pool.alloc(1) == 2
    with pytest.raises(ValueError, match=r"indices\[1\]: slot 0: in a radix tree already"):
        other.insert([1, 2], [2, 0])
    assert other.total_size() == 0


@pytest.mark.parametrize("bad", [[1.5], ["a"], [[1, 2]], torch.tensor([1.0])])
def test_token_ids_that_are_no_integers_are_refused(bad: Any) -> None:
    cache = make_cache()
    for call in (cache.match_prefix, cache.peek_prefix, lambda tokens: cache.insert(tokens, [0])):
        with pytest.raises(ValueError, match="token_ids: expected"):
            call(bad)
    assert cache.total_size() == 0


@pytest.mark.parametrize(("options", "field"), [({"page_size": 0}, "page_size=0"), ({"policy": "mru"}, "'mru'.*lru")])
def test_impossible_options_are_refused_by_name(options: dict[str, Any], field: str) -> None:
    pool = TokenToKVPool(4, torch.float32, 1, 1, 1)
    with pytest.raises(ValueError, match=field):
        RadixCache(ReqToTokenPool(1, 1), pool, **options)


def test_pages_of_the_tree_are_made_of_whole_pages_of_the_pool() -> None:
    pool = TokenToKVPool(16, torch.float32, 1, 1, 1, page_size=4)
    RadixCache(ReqToTokenPool(1, 1), pool, page_size=8)
    for page_size in (1, 2, 6):
        with pytest.raises(ValueError, match=rf"page_size={page_size}: must be a multiple of the pool's 4"):
            RadixCache(ReqToTokenPool(1, 1), pool, page_size)


# --- pages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [4, 16])
def test_a_hit_is_a_whole_number_of_pages(page_size: int) -> None:
    cache = make_cache(8 * page_size, page_size)
    tokens = list(range(3 * page_size))
    _, slots = put(cache, tokens)
    for length in (0, 1, page_size - 1, page_size, page_size + 1, 2 * page_size, 3 * page_size - 1, 3 * page_size):
        whole = length - length % page_size
        assert cache.peek_prefix([*tokens[:length], -1])[0] == whole
        assert cache.match_prefix([*tokens[:length], -1]).indices.tolist() == slots[:whole]
        assert cache.match_prefix(tokens[:length]).indices.tolist() == slots[:whole]
    cache.check_integrity()


def test_an_incomplete_page_stays_with_the_caller() -> None:
    cache = make_cache(16, 4)
    assert put(cache, [1, 2, 3, 4, 5, 6]) == (0, list(range(8)))
    assert cache.total_size() == 4
    assert cache.token_to_kv_pool.free_slots().tolist() == list(range(4, 16))
    assert put(cache, [1, 2, 3])[0] == 0
    assert cache.total_size() == 4


def test_pages_that_differ_only_in_their_last_token_are_different_children() -> None:
    cache = make_cache(32, 4)
    put(cache, [1, 1, 1, 1, 2, 2, 2, 2])
    assert put(cache, [1, 1, 1, 1, 2, 2, 2, 3])[0] == 4
    assert put(cache, [1, 1, 1, 0, 2, 2, 2, 2])[0] == 0
    assert shape(cache) == [(1, [1] * 4), (2, [2] * 4), (2, [2, 2, 2, 3]), (1, [1, 1, 1, 0, 2, 2, 2, 2])]


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


def test_the_same_tokens_under_another_key_never_match() -> None:
    cache = make_cache()
    _, plain = put(cache, [1, 2, 3])
    assert cache.match_prefix([1, 2, 3], extra_key="lora-a").indices.tolist() == []
    known, adapted = put(cache, [1, 2, 3, 4], extra_key="lora-a")
    assert known == 0
    assert put(cache, [1, 2, 3, 4], extra_key=("lora", 7))[0] == 0
    assert cache.match_prefix([1, 2, 3, 4]).indices.tolist() == plain
    assert cache.match_prefix([1, 2, 3, 4], "lora-a").indices.tolist() == adapted
    assert cache.peek_prefix([1, 2, 3, 4], "lora-b")[0] == 0
    assert cache.total_size() == 3 + 4 + 4
    cache.match_prefix([1, 2, 9], "lora-a")  # a split keeps the namespace
    assert cache.match_prefix([1, 2, 3, 4], "lora-a").indices.tolist() == adapted
    assert put(cache, [1, 2, 5], extra_key="lora-a")[0] == 2
    cache.check_integrity()


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


def test_peeking_changes_nothing_at_all() -> None:
    cache = make_cache()
    put(cache, [1, 2, 3, 4])
    put(cache, [1, 2, 7])
    before = snapshot(cache)
    length, node = cache.peek_prefix([1, 2, 3, 9])
    assert (length, node.key.tolist()) == (3, [3, 4])
    assert cache.peek_prefix([1, 9])[0] == 1
    assert snapshot(cache) == before
    cache.match_prefix([1, 2, 3, 9])
    assert snapshot(cache) != before  # the snapshot sees what a match does


def test_insertions_count_what_makes_the_tree_hold_more_and_nothing_else() -> None:
    cache = make_cache()
    put(cache, [1, 2, 3])
    assert cache.insertions == 1
    put(cache, [1, 2])
    match = cache.match_prefix([1, 9])
    cache.inc_lock_ref(match.last_node)
    cache.dec_lock_ref(match.last_node)
    cache.evict(1)
    cache.reset()
    assert cache.insertions == 1
    put(cache, [1, 9])
    assert cache.insertions == 2


def test_a_sequence_that_is_not_shared_grows_in_its_node() -> None:
    cache = make_cache()
    put(cache, [1, 2, 3])
    leaf = cache.match_prefix([1, 2, 3]).last_node
    assert put(cache, [1, 2, 3, 4, 5], grow=leaf)[0] == 3
    assert shape(cache) == [(1, [1, 2, 3, 4, 5])]
    assert (cache.total_size(), cache.evictable_size()) == (5, 5)
    cache.check_integrity()
    assert cache.evict(1) == 5
    assert cache.token_to_kv_pool.available_size() == 64


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


# --- locks -------------------------------------------------------------------------------------------------------


def test_a_lock_protects_the_whole_path_and_nothing_beside_it() -> None:
    cache = make_cache()
    put(cache, [1, 2, 3, 4])
    put(cache, [1, 2, 7, 8, 9])
    node = cache.match_prefix([1, 2, 3, 4]).last_node
    cache.inc_lock_ref(node)
    assert (cache.protected_size(), cache.evictable_size(), cache.total_size()) == (4, 3, 7)
    assert cache.evict(100) == 3
    assert shape(cache) == [(1, [1, 2]), (2, [3, 4])]
    cache.check_integrity()
    cache.dec_lock_ref(node)
    assert (cache.protected_size(), cache.evictable_size()) == (0, 4)
    assert cache.evict(100) == 4
    assert cache.token_to_kv_pool.available_size() == 64


def test_what_two_requests_hold_stays_until_both_let_go() -> None:
    cache = make_cache()
    put(cache, [1, 2, 3, 4])
    whole, half = cache.match_prefix([1, 2, 3, 4]).last_node, cache.match_prefix([1, 2]).last_node
    cache.inc_lock_ref(whole)
    cache.inc_lock_ref(half)
    cache.dec_lock_ref(whole)
    assert (cache.protected_size(), cache.evictable_size()) == (2, 2)
    assert cache.evict(4) == 2
    cache.dec_lock_ref(half)
    assert cache.evict(4) == 2


def test_a_lock_outlives_a_split_of_its_node() -> None:
    cache = make_cache()
    put(cache, [1, 2, 3, 4])
    node = cache.match_prefix([1, 2, 3, 4]).last_node
    cache.inc_lock_ref(node)
    put(cache, [1, 2, 9])
    assert cache.protected_size() == 4
    assert cache.evict(100) == 1
    cache.check_integrity()
    cache.dec_lock_ref(node)
    assert (cache.protected_size(), cache.evictable_size()) == (0, 4)
    cache.check_integrity()


def test_letting_go_twice_is_refused_and_changes_nothing() -> None:
    cache = make_cache()
    put(cache, [1, 2, 3, 4])
    put(cache, [1, 2, 9])
    upper, lower = cache.match_prefix([1, 2]).last_node, cache.match_prefix([1, 2, 3, 4]).last_node
    cache.inc_lock_ref(lower)
    cache.dec_lock_ref(lower)
    cache.inc_lock_ref(upper)  # the upper part of the path is locked, by another request
    before = snapshot(cache)
    with pytest.raises(ValueError, match="not locked"):
        cache.dec_lock_ref(lower)
    assert snapshot(cache) == before
    cache.check_integrity()


@pytest.mark.parametrize("remove", [lambda cache: cache.evict(100), lambda cache: cache.reset()])
def test_a_node_that_has_left_the_tree_cannot_be_locked(remove: Callable[[RadixCache], object]) -> None:
    cache = make_cache()
    put(cache, [1, 2, 3, 4])
    upper, lower = cache.match_prefix([1, 2]).last_node, cache.match_prefix([1, 2, 3, 4]).last_node
    remove(cache)
    for node in (upper, lower):
        for call in (cache.inc_lock_ref, cache.dec_lock_ref):
            with pytest.raises(ValueError, match="no longer in the tree"):
                call(node)
    assert (cache.protected_size(), cache.evictable_size()) == (0, 0)
    cache.check_integrity()


def test_the_root_is_never_counted_and_may_be_locked_by_who_matched_nothing() -> None:
    cache = make_cache()
    put(cache, [1, 2])
    nothing = cache.match_prefix([9]).last_node
    cache.inc_lock_ref(nothing)
    assert (cache.protected_size(), cache.evictable_size()) == (0, 2)
    cache.reset()
    cache.dec_lock_ref(nothing)  # the request that matched nothing ends after the reset
    put(cache, [1, 2])
    assert (cache.protected_size(), cache.evictable_size()) == (0, 2)
    cache.check_integrity()


# --- evict and reset ---------------------------------------------------------------------------------------------


def test_evict_says_what_it_freed_and_the_slots_are_back_in_the_pool() -> None:
    cache = make_cache(16)
    _, old = put(cache, [1, 2, 3])
    _, new = put(cache, [7, 8, 9, 10])
    assert cache.evict(1) == 3  # a leaf goes as a whole
    assert set(old) <= set(cache.token_to_kv_pool.free_slots().tolist())
    assert sorted(cache.slots().tolist()) == new
    assert cache.match_prefix([1, 2, 3]).indices.tolist() == []
    assert cache.match_prefix([7, 8, 9, 10]).indices.tolist() == new
    assert cache.evict(100) == 4
    assert cache.evict(100) == 0
    assert cache.token_to_kv_pool.available_size() == 16


def test_evicting_nothing_evicts_nothing() -> None:
    cache = make_cache()
    put(cache, [1, 2, 3])
    assert cache.evict(0) == 0
    assert cache.total_size() == 3


def test_a_negative_number_to_evict_is_refused() -> None:
    cache = make_cache()
    put(cache, [1, 2, 3])
    with pytest.raises(ValueError, match="num_tokens=-1"):
        cache.evict(-1)
    assert cache.total_size() == 3


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_in_free_loses_no_slot(error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever call of `free` fails: its leaf stays in the tree, what was freed before it stays free."""
    for fails_at, left in ((0, 8), (1, 6), (2, 3)):  # leaves of 2, 3 and 3 tokens
        cache = make_cache(8)
        for tokens in ([1, 2], [3, 4, 5], [6, 7, 8]):
            put(cache, tokens)
        pool, calls = cache.token_to_kv_pool, count()
        free = pool.free

        def failing(slots: Any, calls: Iterator[int] = calls, at: int = fails_at, free: Any = free) -> None:
            if next(calls) == at:
                raise error("on purpose")
            free(slots)

        with monkeypatch.context() as patch:
            patch.setattr(pool, "free", failing)
            with pytest.raises(error):
                cache.evict(100)
        assert cache.total_size() == cache.evictable_size() == left
        assert pool.available_size() + left == 8
        assert sorted([*cache.slots().tolist(), *pool.free_slots().tolist()]) == list(range(8))
        cache.check_integrity()
        assert cache.evict(100) == left
        assert pool.available_size() == 8


def test_an_error_in_free_leaves_what_reset_would_have_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = make_cache()
    put(cache, [1, 2, 3])
    put(cache, [1, 2, 4])
    before = snapshot(cache)
    with monkeypatch.context() as patch:
        patch.setattr(cache.token_to_kv_pool, "free", lambda slots: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            cache.reset()
    assert snapshot(cache) == before
    cache.inc_lock_ref(cache.match_prefix([1, 2]).last_node)


def test_a_parent_goes_after_its_last_child() -> None:
    cache = make_cache()
    put(cache, [1, 2, 3])
    put(cache, [1, 2, 4, 5])
    assert cache.evict(3) == 3
    assert shape(cache) == [(1, [1, 2])]
    assert cache.evict(1) == 2
    assert shape(cache) == []
    cache.check_integrity()


def test_lru_gives_up_what_was_used_longest_ago() -> None:
    cache = make_cache()
    for tokens in ([1, 1], [2, 2], [3, 3], [4, 4]):
        put(cache, tokens)
    cache.match_prefix([1, 1])
    put(cache, [3, 3])
    cache.peek_prefix([2, 2])  # is no use
    assert evicted_order(cache) == [[2, 2], [4, 4], [1, 1], [3, 3]]


def test_lru_counts_a_partial_use_for_the_part_used() -> None:
    cache = make_cache()
    put(cache, [1, 2, 3, 4])
    put(cache, [9])
    cache.match_prefix([1, 2, 8])
    assert evicted_order(cache) == [[3, 4], [9], [1, 2]]


def test_lfu_gives_up_what_was_matched_least_often_and_of_those_the_least_recent() -> None:
    cache = make_cache(policy="lfu")
    for tokens in ([1], [2], [3], [4]):
        put(cache, tokens)
    for tokens in ([1], [1], [3], [2]):
        cache.match_prefix(tokens)
    assert evicted_order(cache) == [[4], [3], [2], [1]]


def test_fifo_gives_up_what_came_first_however_often_it_is_used() -> None:
    cache = make_cache(policy="fifo")
    for tokens in ([1], [2], [3]):
        put(cache, tokens)
    for tokens in ([1], [1], [2]):
        cache.match_prefix(tokens)
    assert evicted_order(cache) == [[1], [2], [3]]


def test_lfu_remembers_the_uses_of_a_node_in_both_parts_of_a_split() -> None:
    cache = make_cache(policy="lfu")
    put(cache, [1, 2, 3, 4])
    put(cache, [9])
    for tokens in ([1, 2, 3, 4], [1, 2, 3, 4], [9], [9], [1, 2]):
        cache.match_prefix(tokens)
    assert evicted_order(cache) == [[3, 4], [9], [1, 2]]


def test_fifo_remembers_the_age_of_a_node_in_both_parts_of_a_split() -> None:
    cache = make_cache(policy="fifo")
    put(cache, [1, 2, 3, 4])
    put(cache, [9])
    cache.match_prefix([1, 2])
    assert evicted_order(cache) == [[3, 4], [1, 2], [9]]


@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo"])
def test_a_leaf_locked_while_it_was_next_in_line_goes_when_it_is_let_go(policy: str) -> None:
    cache = make_cache(policy=policy)
    put(cache, [1, 1])
    put(cache, [2])
    first = cache.match_prefix([1, 1]).last_node
    cache.inc_lock_ref(first)
    assert cache.evict(100) == 1
    cache.dec_lock_ref(first)
    assert cache.evict(100) == 2


def test_reset_empties_the_tree_and_frees_its_slots() -> None:
    cache = make_cache(16)
    put(cache, [1, 2, 3])
    put(cache, [1, 2, 4], extra_key="a")
    cache.reset()
    assert cache.total_size() == 0
    assert cache.token_to_kv_pool.available_size() == 16
    assert cache.match_prefix([1, 2, 3]).indices.tolist() == []
    put(cache, [1, 2, 3])
    assert cache.evict(100) == 3
    cache.check_integrity()


def test_reset_is_refused_while_a_request_relies_on_a_path() -> None:
    cache = make_cache()
    put(cache, [1, 2, 3])
    node = cache.match_prefix([1, 2]).last_node
    cache.inc_lock_ref(node)
    before = snapshot(cache)
    with pytest.raises(ValueError, match="2 tokens are locked"):
        cache.reset()
    assert snapshot(cache) == before
    cache.dec_lock_ref(node)
    cache.reset()
    assert cache.token_to_kv_pool.available_size() == 64


# --- cost --------------------------------------------------------------------------------------------------------


class WatchedDict(dict[Any, Any]):
    """A dict that counts look-ups and forbids going through its members."""

    look_ups = 0

    def get(self, *args: Any) -> Any:
        self.look_ups += 1
        return super().get(*args)

    def __getitem__(self, key: Any) -> Any:
        self.look_ups += 1
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.look_ups += 1
        return super().__contains__(key)

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("children are scanned")

    def _forbidden(self, *args: Any) -> Any:
        raise AssertionError("children are scanned")

    keys = values = items = copy = _forbidden


def test_a_child_among_ten_thousand_is_found_by_one_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = make_cache(20_002)
    cache.token_to_kv_pool.alloc(20_000)
    for first in range(10_000):
        cache.insert([first, 7], [2 * first, 2 * first + 1])
    cache.root.children = children = WatchedDict(cache.root.children)
    compared: list[int] = []

    def counted(a: np.ndarray, b: np.ndarray) -> int:
        compared.append(1)
        return common_prefix_len(a, b)

    monkeypatch.setattr(radix_cache, "common_prefix_len", counted)
    assert len(cache.match_prefix([9_999, 7, 3]).indices) == 2
    assert cache.peek_prefix([5_000, 7])[0] == 2
    assert len(cache.match_prefix([10_000]).indices) == 0
    assert put(cache, [123, 7])[0] == 2  # looks before it changes anything
    assert children.look_ups == 5
    assert len(compared) == 4
    with pytest.raises(AssertionError, match="scanned"):
        list(cache.nodes())  # the watch works


@pytest.mark.parametrize("differ_at", [0, 1, 63, 64, 65, 191, 192, 193, 447, 448, 449])
def test_common_prefix_length_is_right_around_its_chunks(differ_at: int) -> None:
    a = np.arange(500)
    b = a.copy()
    b[differ_at] = -1
    assert common_prefix_len(a, b) == differ_at
    assert common_prefix_len(a, a[:differ_at]) == differ_at


# --- looking at it -----------------------------------------------------------------------------------------------


def test_pretty_print_shows_tokens_slots_and_locks_a_node_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    cache = make_cache()
    put(cache, [11, 12, 13])
    put(cache, [11, 12, 14], extra_key="lora")
    put(cache, list(range(20, 40)))
    cache.inc_lock_ref(cache.match_prefix([11, 12]).last_node)
    cache.pretty_print()
    printed = capsys.readouterr().out
    assert printed == str(cache) + "\n"
    root, upper, lower, adapted, long = printed.splitlines()
    assert "26 tokens, 2 of them protected" in root
    assert "2 tokens [11, 12] in slots [0, 1] lock_ref=1" in upper
    assert "1 tokens [13] in slots [2] lock_ref=0" in lower
    assert lower.index("└") > upper.index("└") == adapted.index("└")
    assert "extra_key='lora'" in adapted
    assert "extra_key" not in upper + lower + long
    assert "20 tokens [20, 21, 22, 23, 24, 25, ...]" in long


def test_an_empty_tree_prints_too(capsys: pytest.CaptureFixture[str]) -> None:
    make_cache().pretty_print()
    assert capsys.readouterr().out.startswith("root: 0 tokens")


def add_a_page(cache: RadixCache, node: TreeNode) -> None:
    node.key, node.value = np.tile(node.key, 2), np.tile(node.value, 2)


def lose_a_slot(cache: RadixCache, node: TreeNode) -> None:
    node.value = node.value[:-1]


def cut_off(cache: RadixCache, node: TreeNode) -> None:
    node.parent = cache.root


def rename(cache: RadixCache, node: TreeNode) -> None:
    node.key = node.key + 100


def lock_below(cache: RadixCache, node: TreeNode) -> None:
    cache.inc_lock_ref(node)
    assert node.parent is not None
    node.parent.lock_ref = 0


def forget_in_queue(cache: RadixCache, node: TreeNode) -> None:
    node.queued = None


def half_a_page(cache: RadixCache, node: TreeNode) -> None:
    node.key, node.value = node.key[:2], node.value[:2]


@pytest.mark.parametrize(
    ("corrupt", "problem"),
    [
        (add_a_page, "sizes"),
        (lose_a_slot, "as many slots"),
        (cut_off, "wrong parent"),
        (rename, "wrong parent"),
        (lock_below, "locked below an unlocked parent"),
        (forget_in_queue, "not in the queue"),
        (half_a_page, "without whole pages"),
    ],
)
def test_check_integrity_notices(corrupt: Callable[[RadixCache, TreeNode], None], problem: str) -> None:
    cache = make_cache(page_size=4)
    put(cache, [1, 2, 3, 4, 5, 6, 7, 8])
    cache.match_prefix([1, 2, 3, 4])
    cache.check_integrity()
    corrupt(cache, cache.match_prefix([1, 2, 3, 4, 5, 6, 7, 8]).last_node)
    with pytest.raises(RuntimeError, match=f"radix cache.*{problem}"):
        cache.check_integrity()
