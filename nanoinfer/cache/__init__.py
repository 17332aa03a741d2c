"""Slots and rows: what owns each of them, and which slots hold K/V that a later request can reuse."""

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.int8_kv_storage import Int8KVStorage
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.radix_cache import RadixCache

__all__ = ["CacheManager", "Int8KVStorage", "RadixCache", "ReqToTokenPool", "TokenToKVPool"]
