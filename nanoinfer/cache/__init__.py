"""Slots and rows: who owns them, and which of them hold K/V that a later request can reuse."""

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.radix_cache import RadixCache

__all__ = ["CacheManager", "RadixCache", "ReqToTokenPool", "TokenToKVPool"]
