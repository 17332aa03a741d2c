"""HostTier: keeps K/V that the radix tree evicts in host memory, and gives it back when a request needs it.

    pool ──evict──► host memory ──no room──► gone
      ▲                  │
      └──────fetch───────┘     a copy stays, so that the next eviction of these tokens has nothing to do

What comes back has the bits that it had, so the tokens are those of an engine with a larger pool.
"""

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from typing import Any

import numpy as np
import torch

from nanoinfer.cache.block_events import CPU
from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.tiers.block_index import Block, BlockIndex
from nanoinfer.cache.tiers.host_memory import HostMemory
from nanoinfer.cache.tiers.tier_blocks import TierBlocks
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.cache.tree_observer import TreeObserver, path_to
from nanoinfer.requests.req import Req

logger = logging.getLogger(__name__)

SMALLEST_BLOCK = 16  # tokens: fewer would make the index large, and copying slow


class HostTier(TreeObserver):
    """The K/V of at most `size` tokens that the tree of `cache` has evicted, in blocks of `block_size` tokens: whole pages.

    `buffers`: all that a slot has, by slot (see HostMemory). `size` is rounded down to whole blocks: ValueError if there is
    not one. `stored_tokens`, `fetched_tokens`: how many have been copied here and back since the start. Tokens that do not
    fill a block when they are evicted are not kept.
    """

    tier = "host"  # its name in outputs
    stays = True  # after an error, it begins anew

    def __init__(self, cache: CacheManager, buffers: Sequence[torch.Tensor], size: int):
        self.block_size = block_size(cache.page_size)
        if size < self.block_size:
            raise ValueError(f"host_cache_tokens={size}: must be at least {self.block_size}, one block of whole pages")
        self.index = BlockIndex(size // self.block_size * self.block_size, self.block_size, self._leaving)
        self.memory = HostMemory(buffers, self.index.size)
        self.stored_tokens = self.fetched_tokens = 0
        self.next_tier: Any = None  # a DiskTier, if there is one: what has to leave is offered to it
        self._cache, self._keeps = cache, True
        cache.radix_cache.observers.add(self)

    def evicting(self, leaf: TreeNode) -> None:
        """Copy the blocks that end in `leaf`. What is before it is still in the pool, whoever evicts it later."""
        if not self._keeps:
            return
        path, key = path_to(leaf)[::-1], leaf.edge[0]
        tokens = np.concatenate([node.key for node in path])
        try:
            positions, slots = self.index.add(tokens, key, len(tokens) - len(leaf))
            if positions.size:
                self.memory.store(np.concatenate([node.value for node in path])[positions], slots)
        except BaseException as error:
            self.index.clear()  # some blocks may have slots without their K/V
            if not isinstance(error, Exception):
                raise
            logger.exception("host memory could not keep what the pool evicts, and begins anew")
            return
        self.stored_tokens += len(positions)

    def fetch(self, req: Req) -> dict[str, tuple[int, int]]:
        """Continue the locked prefix of `req` with K/V that is here, as far as there is some: the tree gets new slots with
        it. There must be room in the pool for all tokens of `req`. If it raises, nothing has changed, except that room was
        made.

        Returns which positions came from which tier, from the first up to the one behind the last: those that were read
        for `req` came from files. Nothing if nothing came. At its first admission, `req.fetched` is that, too.
        """
        cache, tokens, start = self._cache, req.reusable_tokens, req.prefix_len
        end = self.index.reach(tokens, req.extra_key, start)
        fetched_from = {} if self.next_tier is None else self.next_tier.fetched_from
        if end == start:
            fetched_from.pop(req, None)  # should it be fetched later, it comes from host memory
            return {}
        slots = cache.alloc_slots(end - start)  # this may make blocks leave
        try:
            end = start + self._load(tokens, req.extra_key, start, slots)
            cache.radix_cache.insert(
                tokens[:end], np.concatenate((req.prefix_indices.numpy(), slots[: end - start])), req.extra_key
            )
        except BaseException:
            cache.token_to_kv_pool.free(slots)
            raise
        cache.token_to_kv_pool.free(slots[end - start :])
        middle = min(max(fetched_from.pop(req, end), start), end)
        if end == start:
            return {}  # all of it had to leave to make room
        cache.unlock_prefix(req)
        cache.lock_prefix(req)
        parts = {self.tier: (start, middle), "disk": (middle, end)}
        if not req.num_admissions:
            req.fetched = parts
        return parts

    def put(self, tokens: np.ndarray, extra_key: Hashable, start: int, kv: np.ndarray) -> None:
        """Hold K/V of `tokens` from position `start` on, as far as it is not held: uint8 `[k, token_bytes]`, whole blocks,
        that the tier below has, too."""
        try:
            positions, slots = self.index.add(tokens, extra_key, start)
            self.memory.put(kv[positions - start], slots)
        except BaseException:
            self.index.clear()
            raise

    def evict_keys(self, unwanted: Callable[[Hashable], bool]) -> None:
        """Forget everything under the `extra_key`s of which `unwanted` says that nobody will ask for them again."""
        self.index.forget(unwanted)

    @contextmanager
    def emptied(self) -> Iterator[None]:
        """Forget everything, and keep nothing of what is evicted in this block, nor of what is on its way from below."""
        self.index.clear()
        if self.next_tier is not None:
            self.next_tier.give_up()
        self._keeps = False
        try:
            yield
        finally:
            self._keeps = True

    def event_sinks(self, event_block_size: int, changed: Callable[[], object]) -> list[TierBlocks]:
        """Sinks that report, from now on, which blocks are here and which are in the files below: see `BlockFeed.below`.
        ValueError unless each block has whole blocks of `event_block_size` tokens."""
        here = TierBlocks(CPU, self.block_size, event_block_size, changed)
        self.index.attach(here)
        return [here] if self.next_tier is None else [here, self.next_tier.event_sink(event_block_size, changed)]

    def check_integrity(self) -> None:
        """RuntimeError unless every slot has exactly one owner. Visits all blocks."""
        self.index.check_integrity()

    def _leaving(self, block: Block) -> None:
        if self.next_tier is not None:
            self.next_tier.offer(block)

    def _load(self, tokens: np.ndarray, extra_key: Hashable, start: int, pool_slots: np.ndarray) -> int:
        """Copy K/V of the positions from `start` on to `pool_slots`, as far as there is some; returns of how many."""
        slots = self.index.use(tokens, extra_key, start)[: len(pool_slots)]
        self.memory.load(slots, pool_slots[: len(slots)])
        self.fetched_tokens += len(slots)
        return len(slots)


def block_size(page_size: int) -> int:
    """How many tokens a block has: the fewest in whole pages that are at least 16."""
    return ceil(SMALLEST_BLOCK / page_size) * page_size
