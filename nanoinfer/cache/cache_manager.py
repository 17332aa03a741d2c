"""CacheManager: all calls that move slots from one owner to another start here.

Every slot has exactly one owner: the free list, the radix tree, or one running request. So `free + tree + requests ==
N` at all times. A slot moves between owners like this:

    free list ──alloc_slots──► request ──cache_computed──► tree ──evict──► free list
                                  └─────────release──────► tree (computed tokens) and free list (the rest)

With a tier below the pool, there is one way more: `HostTier.fetch` allocates slots, copies K/V to them that was evicted
before, and hands them to the tree.

`release` is called when a request ends, and also when it is retracted or paused: the tree treats all three alike.
"""

from collections.abc import Iterable, Sequence
from math import ceil
from typing import Any

import numpy as np

from nanoinfer.cache.checks import check_owners
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.requests.req import NO_SLOTS, Req


class CacheManager:
    """Moves slots between the pools, the tree and the requests. It knows nothing of models or of scheduling."""

    def __init__(self, req_to_token_pool: ReqToTokenPool, token_to_kv_pool: TokenToKVPool, radix_cache: RadixCache):
        if req_to_token_pool.req_to_token.device.type != "cpu":
            raise ValueError(f"req_to_token_pool: is on {req_to_token_pool.req_to_token.device}, must be on the host")
        # With larger pages in the tree, some slots would end up without an owner.
        if radix_cache.page_size != token_to_kv_pool.page_size:
            raise ValueError(
                f"radix_cache: page_size={radix_cache.page_size}, must be the pool's {token_to_kv_pool.page_size}"
            )
        self.req_to_token_pool, self.token_to_kv_pool = req_to_token_pool, token_to_kv_pool
        self.radix_cache, self.page_size = radix_cache, token_to_kv_pool.page_size
        self.evicted_tokens = 0  # evicted since the start, to make room
        self.next_tier: Any = None  # a HostTier, if there is one below the pool
        self.rows = req_to_token_pool.req_to_token.numpy()  # the same memory as a numpy array, for bookkeeping

    def whole_pages(self, num_tokens: int) -> int:
        """How many slots `num_tokens` tokens take up: `num_tokens`, rounded up to whole pages."""
        return -(-num_tokens // self.page_size) * self.page_size

    def obtainable_size(self) -> int:
        """How many slots can be allocated now: those that are free, plus those that eviction would free."""
        return self.token_to_kv_pool.available_size() + self.radix_cache.evictable_size()

    def outstanding_size(self, req: Req, ratio: float = 1.0) -> int:
        """How many more slots `req` will need if it produces the share `ratio` of the tokens it may still produce.

        This always covers the tokens that it has now. With a ratio of 1.0 it is the most that `req` can need. It is 0 if
        `req` has more slots than that already.
        """
        expected_len = req.num_tokens + ceil(ratio * (req.max_kv_len - req.num_tokens))
        return max(self.whole_pages(expected_len) - max(req.allocated_len, req.prefix_len), 0)

    def decode_size(self, reqs: Sequence[Req]) -> int:
        """How many slots a DECODE pass of `reqs` needs: one new page for each request whose last page is full."""
        return self.page_size * sum(req.allocated_len < req.num_tokens for req in reqs)

    def lock_prefix(self, req: Req) -> None:
        """Find the longest prefix of `req` that the tree holds, and lock it until `release` or `unlock_prefix`."""
        match = self.radix_cache.match_prefix(req.reusable_tokens, req.extra_key, count_hit=False)
        self.radix_cache.inc_lock_ref(match.last_node)
        req.prefix_indices, req.last_node = match.indices, match.last_node
        req.prefix_len = req.tree_len = len(match.indices)

    def count_hit(self, req: Req) -> None:
        """Count one hit on the locked prefix of `req`, which is being admitted, however often it was considered before."""
        assert req.last_node is not None
        self.radix_cache.count_hit(req.last_node)

    def unlock_prefix(self, req: Req) -> None:
        """Undo `lock_prefix` for a request that is not admitted after all."""
        assert req.last_node is not None
        self.radix_cache.dec_lock_ref(req.last_node)
        req.prefix_indices, req.last_node = NO_SLOTS, None
        req.prefix_len = req.tree_len = 0

    def alloc_slots(self, need_size: int) -> np.ndarray:
        """Allocate `need_size` slots, int32; evict cached tokens when the free list is too short.

        The scheduler has made sure that there are enough, so running short here is a bug.
        """
        missing = need_size - self.token_to_kv_pool.available_size()
        if missing > 0:
            self.evicted_tokens += self.radix_cache.evict(missing)
        slots = self.token_to_kv_pool.alloc(need_size)
        assert slots is not None, f"{need_size} slots needed, {self.obtainable_size()} obtainable"
        return slots.numpy()

    def alloc_up_to(self, reqs: Sequence[Req], lens: Sequence[int]) -> None:
        """Give each request slots for its first `lens[i]` tokens, in whole pages, and write them into its row.

        A request that has them already gets none. When it raises, no request has got any.
        """
        need = [max(self.whole_pages(length) - req.allocated_len, 0) for req, length in zip(reqs, lens, strict=True)]
        slots = self.alloc_slots(sum(need))
        for req, size in zip(reqs, need, strict=True):
            self.rows[req.req_pool_idx, req.allocated_len : req.allocated_len + size] = slots[:size]
            req.allocated_len += size
            slots = slots[size:]

    def cache_computed(self, req: Req) -> None:
        """Hand the tree the K/V that `req` has computed so far, in whole pages; `req` keeps reading it from there.

        If another request was first to put the same tokens there, `req` frees its duplicates and reads the tree's slots.
        """
        if self.radix_cache.disable:
            return
        assert req.last_node is not None
        row = self.rows[req.req_pool_idx]
        tokens = req.token_ids[: req.kv_len - req.kv_len % self.page_size]
        known = self.radix_cache.insert(tokens, row[: len(tokens)], req.extra_key)
        duplicates = row[req.tree_len : known].copy()
        match = self.radix_cache.match_prefix(tokens, req.extra_key, count_hit=False)
        row[: len(tokens)] = match.indices.numpy()
        self.token_to_kv_pool.free(duplicates)
        self.radix_cache.inc_lock_ref(match.last_node)
        self.radix_cache.dec_lock_ref(req.last_node)
        req.last_node, req.tree_len = match.last_node, len(tokens)

    def release(self, req: Req) -> None:
        """Take back the row, the lock and the slots of a request that ends, or that is retracted or paused.

        Slots with computed K/V go to the tree, in whole pages, so that later requests find them. The free list gets the
        rest: duplicates of what the tree already has, an incomplete last page, and slots that were never filled.
        """
        assert req.req_pool_idx is not None
        row, tree = self.rows[req.req_pool_idx], self.radix_cache
        if tree.disable:
            unused = row[: req.allocated_len].copy()
        else:
            assert req.last_node is not None
            tokens = req.token_ids[: req.kv_len - req.kv_len % self.page_size]
            tree.dec_lock_ref(req.last_node)
            known = tree.insert(tokens, row[: len(tokens)], req.extra_key, grow=req.last_node)
            unused = np.concatenate((row[req.tree_len : known], row[len(tokens) : req.allocated_len]))
        self.token_to_kv_pool.free(unused)
        self.req_to_token_pool.free([req.req_pool_idx])
        req.req_pool_idx, req.last_node, req.prefix_indices = None, None, NO_SLOTS
        req.prefix_len = req.tree_len = req.allocated_len = req.kv_len = 0

    def clear(self) -> None:
        """Empty pools, tree and what is below, whoever owns what: no request may use any of it any more."""
        self.radix_cache.clear()
        self.req_to_token_pool.clear()
        self.token_to_kv_pool.clear()
        if self.next_tier is not None:
            with self.next_tier.emptied():
                pass

    def check_integrity(self, running: Iterable[Req]) -> None:
        """Raise RuntimeError unless every slot and every row has exactly one owner and every lock has a holder.

        It looks at the whole pool.
        """
        for part in (self.req_to_token_pool, self.token_to_kv_pool, self.radix_cache):
            part.check_integrity()
        check_owners(self.req_to_token_pool, self.token_to_kv_pool, self.radix_cache, list(running))
