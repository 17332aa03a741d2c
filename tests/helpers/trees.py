"""Small radix caches, a caller that inserts into them, and what there is to see of them."""

from collections.abc import Hashable, Sequence
from typing import Any

import torch

from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.cache.tree_node import TreeNode


def make_cache(size: int = 64, page_size: int = 1, **options: Any) -> RadixCache:
    pool = TokenToKVPool(size, torch.float32, head_num=1, head_dim=1, layer_num=1, page_size=page_size)
    return RadixCache(ReqToTokenPool(4, size), pool, page_size, **options)


def put(
    cache: RadixCache, tokens: Sequence[int], extra_key: Hashable = None, grow: TreeNode | None = None
) -> tuple[int, list[int]]:
    """Insert as a caller does: with new slots, giving duplicates and an incomplete page back.

    Returns how many tokens were known and the slots that were offered.
    """
    pool, page_size = cache.token_to_kv_pool, cache.page_size
    slots = pool.alloc(-(-len(tokens) // page_size) * page_size)
    assert slots is not None
    known = cache.insert(tokens, slots[: len(tokens)], extra_key, grow)
    whole = 0 if cache.disable else len(tokens) - len(tokens) % page_size
    pool.free(torch.cat((slots[:known], slots[whole:])))
    return known, slots.tolist()


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
