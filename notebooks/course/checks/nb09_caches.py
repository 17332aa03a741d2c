"""The caches of notebook 09's checks: how they are made, how requests go through them, and what must hold."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.requests.req import Req
from nanoinfer.requests.sampling_params import SamplingParams
from notebooks.course.exercises import Given
from notebooks.course.expectations import Hint, expect

SIZE, ROWS = 64, 6


def empty_cache(cls: Callable[..., CacheManager] = CacheManager, size: int = SIZE, page_size: int = 1) -> CacheManager:
    pool = TokenToKVPool(size, torch.float32, head_num=1, head_dim=1, layer_num=1, page_size=page_size)
    rows = ReqToTokenPool(ROWS, 2 * size)
    return cls(rows, pool, RadixCache(rows, pool, page_size))


def given_cache(given: Given, name: str, size: int = SIZE) -> Any:
    cls = given[name]
    expect(
        isinstance(cls, type) and issubclass(cls, CacheManager),
        f"`{name}` must be a class that inherits from the package's CacheManager: run the import cell above the exercises",
    )
    return empty_cache(cls, size)


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
