"""Checks of notebook 09: an audit, and what a request gives back, inside the package's CacheManager."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.requests.req import Req
from nanoinfer.sampling_params import SamplingParams
from notebooks.course.checks.nb08 import given_class
from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import Hint, expect, expect_equal

SIZE, ROWS = 64, 6


@exercise("9.1", "An audit", points=2)
def _(given: Given) -> str | None:
    audit = given["audit"]
    cache = empty_cache(size=12)
    expect_equal(audit(cache, []), [["free"]] * 12, "in a new pool every slot is free, and there is one entry per slot")
    req = admitted(cache, 7, "ABCD")
    early = "the pass of request 7 hasn't run (kv_len is 0), but its four slots are its own, up to allocated_len"
    expect_equal(audit(cache, [req]), [["request 7"]] * 4 + [["free"]] * 8, early)
    run(req)
    cache.cache_computed(req)
    req.append(ord("E"))
    take_slots(cache, req)
    begin = "the prompt is the tree's now, so the request's own slots begin at tree_len (prefix_len is still 0)"
    expect_equal(audit(cache, [req]), [["tree"]] * 4 + [["request 7"]] + [["free"]] * 7, begin)
    second = admitted(cache, 8, "ABX")
    want = [["tree"]] * 4 + [["request 7"], ["request 8"]] + [["free"]] * 6
    expect_equal(audit(cache, [req, second]), want, "request 8 reads two slots of the tree, and owns one")
    cache.token_to_kv_pool.free([4])
    want[4] = ["free", "request 7"]
    both = "slot 4 has been freed although request 7 still has it: an audit must name both owners"
    expect_equal([sorted(names) for names in audit(cache, [req, second])], want, both)
    cache.token_to_kv_pool.alloc(1)
    expect_equal(audit(cache, [second])[4], [], "nothing owns slot 4: its entry is an empty list")

    paged = empty_cache(size=16, page_size=4)
    req = admitted(paged, 3, "ABCDE")
    run(req)
    pages = "with pages of 4, five tokens take two pages: the request owns eight slots, filled or not"
    expect_equal(audit(paged, [req]), owners(paged, [req]), pages)
    rng = np.random.default_rng(1)
    cache, running = empty_cache(), list[Req]()
    for number in range(40):
        if len(running) == 4:
            cache.release(running.pop(rng.integers(4)))
        running.append(admitted(cache, number, "".join(rng.choice(list("AB"), rng.integers(2, 9)))))
        if rng.integers(2):
            run(running[-1])
            cache.cache_computed(running[-1])
        got, want = ([sorted(names) for names in each(cache, running)] for each in (audit, owners))
        expect_equal(got, want, f"after {number + 1} random requests")
    return "every owner of every slot is found, also in broken pools"


@exercise("9.2", "Take everything back", points=3)
def _(given: Given) -> str | None:
    cache = given_cache(given, "Release")
    req = admitted(cache, 1, "ABCD")
    run(req)
    cache.release(req)
    expect_equal(cache.radix_cache.total_size(), 4, "computed tokens go to the tree: a later request may use them")
    rows = "the request's row must be free again: self.req_to_token_pool.free"
    expect_equal(cache.req_to_token_pool.available_size(), ROWS, rows)
    expect_one_owner(cache, [], "after a request that found nothing and shared nothing")

    second = admitted(cache, 2, "ABCDEF")
    run(second)
    cache.release(second)
    expect_equal(cache.radix_cache.protected_size(), 0, "nothing runs, so nothing may be locked: give the lock back")
    expect_one_owner(cache, [], "a request that had found 'ABCD' in the tree and computed 'EF'")

    twins = [admitted(cache, number, "XYZXYZ") for number in (3, 4)]
    run(*twins)
    for req in twins:
        cache.release(req)
    expect_one_owner(cache, [], "two requests that have both computed 'XYZXYZ': the second one's slots are duplicates")

    aborted = admitted(cache, 5, "ABQRST")
    held, found = owned(cache, aborted), aborted.kv_len
    cache.release(aborted)
    free = set(cache.token_to_kv_pool.free_slots().tolist())
    expect(
        set(held) <= free,
        f"a request is aborted before its pass has run: its slots {held} hold nothing (kv_len is still {found}, what it "
        "found), so they must be free, and not in the tree",
    )
    expect_one_owner(cache, [], "after a request that was aborted before its pass")

    again = admitted(cache, 6, "MNO")
    run(again)
    again.append(ord("P"))  # the newest token: chosen, but not computed
    take_slots(cache, again)
    cache.release(again)
    newest = "the newest token has a slot, but no pass has computed its K/V: the tree gets the first kv_len tokens only"
    expect_equal(len(cache.radix_cache.match_prefix([ord(letter) for letter in "MNOP"]).indices), 3, newest)
    expect_one_owner(cache, [], "after a request that was aborted between two passes")

    cache = given_cache(given, "Release")
    rng, running = np.random.default_rng(4), list[Req]()
    for number in range(150):
        if len(running) == 4 or cache.obtainable_size() < 20:
            cache.release(running.pop(rng.integers(len(running))))
        running.append(admitted(cache, number, "".join(rng.choice(list("AB"), rng.integers(2, 9)))))
        progress = rng.integers(3)  # 0: its pass has not run, 2: it has handed over
        if progress:
            run(running[-1])
        if progress == 2:
            cache.cache_computed(running[-1])
        expect_one_owner(cache, running, f"after {number + 1} random requests")
    return "no slot, row or lock is left over after 150 random requests"


def empty_cache(cls: Callable[..., CacheManager] = CacheManager, size: int = SIZE, page_size: int = 1) -> CacheManager:
    pool = TokenToKVPool(size, torch.float32, head_num=1, head_dim=1, layer_num=1, page_size=page_size)
    rows = ReqToTokenPool(ROWS, 2 * size)
    return cls(rows, pool, RadixCache(rows, pool, page_size))


def given_cache(given: Given, name: str, size: int = SIZE) -> Any:
    return empty_cache(given_class(given, name, CacheManager), size)


def request(number: int, text: str) -> Req:
    return Req(number, np.array([ord(letter) for letter in text]), SamplingParams(max_new_tokens=16))


def admitted(cache: CacheManager, number: int, text: str) -> Req:
    """A request whose prefix is locked, with slots for all its tokens; its pass has not run."""
    req = request(number, text)
    CacheManager.lock_prefix(cache, req)
    rows = cache.req_to_token_pool.alloc(1)
    assert rows is not None
    req.req_pool_idx = int(rows[0])
    cache.rows[req.req_pool_idx, : req.prefix_len] = req.prefix_indices.numpy()
    req.allocated_len = req.kv_len = req.prefix_len
    take_slots(cache, req)
    return req


def take_slots(cache: CacheManager, req: Req) -> None:
    need = cache.whole_pages(req.num_tokens) - req.allocated_len
    cache.rows[req.req_pool_idx, req.allocated_len : req.allocated_len + need] = CacheManager.alloc_slots(cache, need)
    req.allocated_len += need


def run(*reqs: Req) -> None:
    """A pass: all their tokens have K/V."""
    for req in reqs:
        req.kv_len = req.num_tokens


def owned(cache: CacheManager, req: Req) -> list[int]:
    """The slots that belong to the request alone."""
    return cache.rows[req.req_pool_idx, req.tree_len : req.allocated_len].tolist()


def owners(cache: CacheManager, running: Sequence[Req]) -> list[list[str]]:
    found: list[list[str]] = [[] for _ in range(cache.token_to_kv_pool.size)]
    parts = {"free": cache.token_to_kv_pool.free_slots().tolist(), "tree": cache.radix_cache.slots().tolist()}
    for name, slots in {**parts, **{f"request {req.request_id}": owned(cache, req) for req in running}}.items():
        for slot in slots:
            found[slot].append(name)
    return found


def expect_one_owner(cache: CacheManager, running: Sequence[Req], when: str) -> None:
    """Every slot has one owner, every lock a holder."""
    everything = owners(cache, running)
    both = [slot for slot, names in enumerate(everything) if "free" in names and "tree" in names]
    expect(
        not both,
        f"{when}: slots {both} are both free and in the tree. You have freed slots that are the tree's: those before "
        "tree_len, which the request only read, or those that the tree has just taken over",
    )
    for slot, names in enumerate(everything):
        expect(len(names) < 2, f"{when}: slot {slot} has {len(names)} owners: {' and '.join(names)}")
    lost = [slot for slot, names in enumerate(everything) if not names]
    expect(not lost, f"{when}: slots {lost} are neither free, nor in the tree, nor a request's: they are lost for good")
    try:
        CacheManager.check_integrity(cache, running)
    except RuntimeError as error:
        raise Hint(
            f"{when}: {error}. Each running request locks the path to its last_node, once, and nothing else is locked"
        ) from None
