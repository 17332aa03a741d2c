"""The radix cache: looking without a change, growing in place, and what a look costs in a wide tree."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from nanoinfer.cache import radix_cache
from nanoinfer.cache.indices import common_prefix_len
from tests.helpers.trees import make_cache, put, shape, snapshot

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


def test_a_child_among_a_thousand_is_found_by_one_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = make_cache(2_002)
    cache.token_to_kv_pool.alloc(2_000)
    for first in range(1_000):
        cache.insert([first, 7], [2 * first, 2 * first + 1])
    cache.root.children = children = WatchedDict(cache.root.children)
    compared: list[int] = []

    def counted(a: np.ndarray, b: np.ndarray) -> int:
        compared.append(1)
        return common_prefix_len(a, b)

    monkeypatch.setattr(radix_cache, "common_prefix_len", counted)
    assert len(cache.match_prefix([999, 7, 3]).indices) == 2
    assert cache.peek_prefix([500, 7])[0] == 2
    assert len(cache.match_prefix([1_000]).indices) == 0
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
