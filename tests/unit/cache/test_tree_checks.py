"""The radix cache, printed; and what RadixCache.check_integrity notices."""

from collections.abc import Callable

import numpy as np
import pytest

from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.cache.tree_node import TreeNode
from tests.helpers.trees import make_cache, put


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
