"""Pools without K/V: the same slots, rows and tree as an engine's, and no tensors behind them."""

import torch

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.kv_storage import KVStorage
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.config import EngineConfig
from nanoinfer.registry import KV_STORAGES


class NoStorage(KVStorage):
    """Keeps nothing. Writing raises a RuntimeError, because no model runs in a simulation."""

    def __init__(
        self, size: int, dtype: torch.dtype, head_num: int, head_dim: int, layer_num: int, device: torch.device
    ):
        self._token = torch.zeros((head_num, head_dim), dtype=dtype, device=device)

    @staticmethod
    def bytes_per_token(dtype: torch.dtype, head_num: int, head_dim: int, layer_num: int) -> int:
        """Nothing."""
        return 0

    def write(self, layer_id: int, slots: torch.Tensor | slice, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Raise a RuntimeError."""
        raise RuntimeError("this pool has no storage for K/V: it is part of a simulation")

    def read(self, layer_id: int, slots: torch.Tensor | slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Zeros, of the shape that KVStorage promises. They take no memory of their own."""
        count = len(range(*slots.indices(2**31 - 1))) if isinstance(slots, slice) else len(slots)
        zeros = self._token.expand(count, *self._token.shape)
        return zeros, zeros


KV_STORAGES["none"] = NoStorage


def make_pools(config: EngineConfig) -> tuple[ReqToTokenPool, TokenToKVPool]:
    """Rows and slots of an engine with these settings."""
    page = config.page_size
    rows = ReqToTokenPool(config.max_running_requests, -(-config.max_context_len // page) * page)
    return rows, TokenToKVPool(config.max_total_tokens, torch.float32, 1, 1, 1, page_size=page, kv_cache_dtype="none")


def make_cache(config: EngineConfig) -> CacheManager:
    """Rows, slots and tree of one simulated engine with these settings."""
    rows, slots = make_pools(config)
    tree = RadixCache(rows, slots, config.page_size, config.eviction_policy, config.disable_radix_cache)
    return CacheManager(rows, slots, tree)
