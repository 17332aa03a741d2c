"""CacheManager.check_integrity: a slot, row or lock without its one owner is noticed."""

from typing import Any

import pytest
import torch

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.requests.req import Req
from tests.helpers.fakes import A, FakeServer


def lose_a_slot(server: FakeServer, req: Req) -> None:
    req.allocated_len -= 1


def share_a_slot(server: FakeServer, req: Req) -> None:
    server.cache.rows[req.req_pool_idx, req.tree_len] = server.cache.rows[req.req_pool_idx, 0]


def free_a_slot(server: FakeServer, req: Req) -> None:
    server.pool.free(server.cache.rows[req.req_pool_idx, req.tree_len : req.tree_len + 1])


def free_the_row(server: FakeServer, req: Req) -> None:
    server.rows.free([req.req_pool_idx or 0])


def let_go(server: FakeServer, req: Req) -> None:
    assert req.last_node is not None
    server.tree.dec_lock_ref(req.last_node)


def lock_for_nobody(server: FakeServer, req: Req) -> None:
    assert req.last_node is not None
    server.tree.inc_lock_ref(req.last_node)


@pytest.mark.parametrize("corrupt", [lose_a_slot, share_a_slot, free_a_slot, free_the_row, let_go, lock_for_nobody])
def test_check_integrity_notices(corrupt: Any) -> None:
    server = FakeServer()
    req = server.add(A[:4], max_new_tokens=6)
    for _ in range(3):
        server.step()
    server.cache.check_integrity(server.scheduler.running)
    corrupt(server, req)
    with pytest.raises(RuntimeError, match=r"owners|rows|lock_ref"):
        server.cache.check_integrity(server.scheduler.running)


def test_check_integrity_notices_a_slot_that_nothing_owns() -> None:
    server = FakeServer()
    server.serve(A[:4], max_new_tokens=1)
    assert server.pool.alloc(1) is not None
    with pytest.raises(RuntimeError, match=r"slot 4 has 0 owners, must have 1 \(1 such slots\)"):
        server.cache.check_integrity([])


@pytest.mark.parametrize(("slot", "message"), [(-1, "slot -1 has 1 owners, must have 0"), (4, "slot 3 has 0 owners")])
def test_a_slot_outside_the_pool_stands_for_none_inside(slot: int, message: str) -> None:
    """-1 is no other way to write 3, the last slot of the pool."""
    server = FakeServer(max_total_tokens=4)
    server.serve(A[:4], max_new_tokens=1)
    node = server.tree.match_prefix(A[:4]).last_node
    assert node.value.tolist() == [0, 1, 2, 3]
    server.cache.check_integrity([])
    node.value[3] = slot
    with pytest.raises(RuntimeError, match=message):
        server.cache.check_integrity([])


def test_check_integrity_notices_a_running_request_that_nobody_counts() -> None:
    server = FakeServer()
    server.add(A[:4], max_new_tokens=6)
    server.step()
    with pytest.raises(RuntimeError, match=r"owners|rows|lock_ref"):
        server.cache.check_integrity([])


def test_rows_that_the_bookkeeping_cannot_reach_are_refused() -> None:
    rows, pool = ReqToTokenPool(2, 4, device="meta"), TokenToKVPool(4, torch.float32, 1, 1, 1)
    with pytest.raises(ValueError, match=r"req_to_token_pool: is on meta.*host"):
        CacheManager(rows, pool, RadixCache(rows, pool))


def test_a_tree_with_larger_pages_than_the_pool_cannot_be_managed() -> None:
    rows, pool = ReqToTokenPool(2, 16), TokenToKVPool(16, torch.float32, 1, 1, 1, page_size=4)
    with pytest.raises(ValueError, match=r"radix_cache: page_size=8, must be the pool's 4"):
        CacheManager(rows, pool, RadixCache(rows, pool, page_size=8))
