"""Small K/V pools."""

import torch

from nanoinfer.cache.memory_pool import TokenToKVPool


def kv_pool(size: int = 16, page_size: int = 1, layer_num: int = 1) -> TokenToKVPool:
    return TokenToKVPool(size, torch.float32, head_num=2, head_dim=4, layer_num=layer_num, page_size=page_size)


def taken(pool: TokenToKVPool, *slots: int) -> TokenToKVPool:
    """`pool` with exactly `slots` given out."""
    assert pool.alloc(pool.size) is not None
    pool.free([slot for slot in range(pool.size) if slot not in slots])
    return pool
