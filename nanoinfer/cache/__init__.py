"""Slots and rows: what owns each of them, and which slots hold K/V that a later request can reuse."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanoinfer.cache.block_feed import BlockFeed
    from nanoinfer.cache.cache_manager import CacheManager
    from nanoinfer.cache.kv_storage import Int8KVStorage
    from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
    from nanoinfer.cache.radix_cache import RadixCache

__all__ = ["BlockFeed", "CacheManager", "Int8KVStorage", "RadixCache", "ReqToTokenPool", "TokenToKVPool"]
_FILES = {
    "BlockFeed": "block_feed",
    "CacheManager": "cache_manager",
    "Int8KVStorage": "kv_storage",
    "RadixCache": "radix_cache",
    "ReqToTokenPool": "memory_pool",
    "TokenToKVPool": "memory_pool",
}


def __getattr__(name: str) -> Any:
    """Load a public name at its first use: a router needs `block_events.py` and no torch."""
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_FILES[name]}"), name)
