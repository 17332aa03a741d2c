"""check_integrity: a slot, row or lock without its one owner is noticed; and how a tree prints."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.requests.req import Req
from tests.helpers.fakes import A, FakeServer
from tests.helpers.trees import make_cache, put


def lose_a_slot(server: FakeServer, req: Req) -> None:
    req.allocated_len -= 1


def share_a_slot(server: FakeServer, req: Req) -> None:
    server.cache.rows[req.req_pool_idx, req.tree_len] = server.cache.rows[req.req_pool_idx, 0]


def free_a_slot(server: FakeServer, req: Req) -> None:
    server.pool.free(server.cache.rows[req.req_pool_idx, req.tree_len : req.tree_len + 1])


def free_the_row(server: FakeServer, req: Req) -> None:
    server.rows.free([req.req_pool_idx or 0])


def let_go(server: FakeServer, req: Req) -> None:
    server.tree.dec_lock_ref(req.last_node)


def lock_for_nobody(server: FakeServer, req: Req) -> None:
    server.tree.inc_lock_ref(req.last_node)


def let_go_and_evict(server: FakeServer, req: Req) -> None:
    server.tree.dec_lock_ref(req.last_node)
    server.tree.evict(req.tree_len)


@pytest.mark.parametrize(
    "corrupt", [lose_a_slot, share_a_slot, free_a_slot, free_the_row, let_go, let_go_and_evict, lock_for_nobody]
)
def test_check_integrity_notices(corrupt: Any) -> None:
    server = FakeServer()
    req = server.add(A[:4], max_new_tokens=6)
    for _ in range(3):
        server.step()
    server.cache.check_integrity(server.scheduler.running)
    corrupt(server, req)
    with pytest.raises(RuntimeError, match=r"owners|rows|lock_ref|left the tree"):
        server.cache.check_integrity(server.scheduler.running)


def test_check_integrity_notices_a_slot_that_nothing_owns() -> None:
    server = FakeServer()
    server.serve(A[:4], max_new_tokens=1)
    assert server.pool.alloc(1) is not None
    with pytest.raises(RuntimeError, match=r"slot 4 has 0 owners, must have 1 \(1 such slots\)"):
        server.cache.check_integrity([])


def test_check_integrity_notices_a_running_request_that_nobody_counts() -> None:
    server = FakeServer()
    server.add(A[:4], max_new_tokens=6)
    server.step()
    with pytest.raises(RuntimeError, match=r"owners|rows|lock_ref"):
        server.cache.check_integrity([])


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
    assert "extra_key='lora'" in adapted
    assert "20 tokens [20, 21, 22, 23, 24, 25, ...]" in long


def add_a_page(cache: RadixCache, node: TreeNode) -> None:
    node.key, node.value = np.tile(node.key, 2), np.tile(node.value, 2)


def shorten(cache: RadixCache, node: TreeNode) -> None:
    node.value = node.value[:-1]


def cut_off(cache: RadixCache, node: TreeNode) -> None:
    node.parent = cache.root


def rename(cache: RadixCache, node: TreeNode) -> None:
    node.key = node.key + 100


def lock_below(cache: RadixCache, node: TreeNode) -> None:
    cache.inc_lock_ref(node)
    node.parent.lock_ref = 0


def forget_in_queue(cache: RadixCache, node: TreeNode) -> None:
    node.queued = None


def half_a_page(cache: RadixCache, node: TreeNode) -> None:
    node.key, node.value = node.key[:2], node.value[:2]


@pytest.mark.parametrize(
    ("corrupt", "problem"),
    [
        (add_a_page, "sizes"),
        (shorten, "as many slots"),
        (cut_off, "wrong parent"),
        (rename, "wrong parent"),
        (lock_below, "locked below an unlocked parent"),
        (forget_in_queue, "not in the queue"),
        (half_a_page, "without whole pages"),
    ],
)
def test_the_trees_own_check_notices(corrupt: Callable[[RadixCache, TreeNode], None], problem: str) -> None:
    cache = make_cache(page_size=4)
    put(cache, [1, 2, 3, 4, 5, 6, 7, 8])
    cache.match_prefix([1, 2, 3, 4])
    cache.check_integrity()
    corrupt(cache, cache.match_prefix([1, 2, 3, 4, 5, 6, 7, 8]).last_node)
    with pytest.raises(RuntimeError, match=f"radix cache.*{problem}"):
        cache.check_integrity()
