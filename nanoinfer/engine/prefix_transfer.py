"""PrefixTransfer: a prefix's K/V as bytes for another engine, so that one computes prompts and another continues them.

    export_prefix ──► a safetensors file in memory, as cache/tiers/ has them on disk ──► import_prefix

Both engines must be equal in all that K/V depends on. Then what is imported has the bits that this one would compute.
"""

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch

from nanoinfer.cache.block_events import as_tokens, key_bytes
from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.tiers.host_memory import HostMemory
from nanoinfer.cache.tiers.kv_file import pack, unpack
from nanoinfer.model.lora.adapter import Adapter, adapter_digest
from nanoinfer.requests.request import AdapterKey, check_extra_key
from nanoinfer.version import __version__

Tokens = Sequence[int] | np.ndarray
Visit = Callable[[], AbstractContextManager[object]]


class PrefixTransfer:
    """Moves K/V between the pool of `cache` and bytes. `buffers`: all that a slot has (see HostMemory).

    `fields`: all that K/V depends on beside tokens, adapters and `extra_key`. `visit`: entered to use pool and tree; what
    takes long and does not need them is done outside, so that passes go on meanwhile.
    """

    def __init__(self, cache: CacheManager, buffers: Sequence[torch.Tensor], fields: Mapping[str, object]):
        self._cache, self._rows = cache, HostMemory(buffers, 0)
        layout = {"layout": self._rows.layout, "page_size": cache.page_size}
        self._fields = {**fields, **layout, "package": __version__}

    def dump(self, tokens: Tokens, adapter: Adapter | None, extra_key: Hashable, visit: Visit) -> bytes:
        """K/V of the longest prefix of `tokens` that the pool, and host memory behind it, have; b"" if it has no token."""
        key, namespace = _tree_key(adapter, extra_key), _namespace(adapter, extra_key)
        known = as_tokens(tokens)
        with visit():
            kv = self._gathered(known, key)
        if not len(kv):
            return b""
        return pack({"engine": json.dumps(self._fields), "namespace": namespace}, known[: len(kv)], kv)

    def load(
        self,
        data: bytes | bytearray | memoryview,
        adapter: Adapter | None,
        extra_key: Hashable,
        visit: Visit,
        change: Callable[[Callable[[], int]], int],
    ) -> int:
        """Put what `dump` returned into the pool, as far as there is room; how many of its tokens are there now, from the
        first one on. ValueError, with nothing changed, for what is damaged or does not belong here."""
        key, namespace = _tree_key(adapter, extra_key), _namespace(adapter, extra_key)
        if not len(data):
            return 0
        tokens, kv = self._checked(bytes(data), namespace)
        with visit():
            return change(lambda: self._add(tokens, kv, key))

    def _gathered(self, tokens: np.ndarray, key: Hashable) -> np.ndarray:
        cache = self._cache
        slots = cache.radix_cache.match_prefix(tokens, key, count_hit=False).indices.numpy()
        kv = self._rows.read_pool(slots)
        if cache.next_tier is None:
            return kv
        return np.concatenate((kv, cache.next_tier.memory.read(cache.next_tier.index.use(tokens, key, len(slots)))))

    def _add(self, tokens: np.ndarray, kv: np.ndarray, key: Hashable) -> int:
        cache, tree = self._cache, self._cache.radix_cache
        match = tree.match_prefix(tokens, key, count_hit=False)
        start = len(match.indices)
        tree.inc_lock_ref(match.last_node)  # or else it could be evicted to make room
        try:
            end = min(len(tokens), start + cache.obtainable_size())
            if end > start:
                self._put(tokens[:end], kv[start:end], match.indices.numpy(), key)
        finally:
            tree.dec_lock_ref(match.last_node)
        return end

    def _put(self, tokens: np.ndarray, kv: np.ndarray, known: np.ndarray, key: Hashable) -> None:
        slots = self._cache.alloc_slots(len(kv))
        try:
            self._rows.write_pool(kv, slots)
            self._cache.radix_cache.insert(tokens, np.concatenate((known, slots)), key)
        except BaseException:
            self._cache.token_to_kv_pool.free(slots)
            raise

    def _checked(self, data: bytes, namespace: str) -> tuple[np.ndarray, np.ndarray]:
        """The tokens, int64 `[n]`, and their K/V, uint8 `[n, token_bytes]`."""
        try:
            said, tokens, kv = unpack(data)
            theirs = json.loads(said["engine"])
        except (ValueError, LookupError) as error:
            raise ValueError(f"data: is damaged, or not what export_prefix returned: {error}") from error
        ours = self._fields
        if differing := [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]:
            differ = ", ".join(f"{name} ({theirs.get(name)}, here {ours.get(name)})" for name in differing)
            raise ValueError(f"data: comes from an engine that differs from this one in {differ}")
        if said["namespace"] != namespace:
            raise ValueError("data: was computed with another adapter or another extra_key than those given here")
        return tokens, kv


def _tree_key(adapter: Adapter | None, extra_key: Hashable) -> Hashable:
    """As a Req has it."""
    return extra_key if adapter is None else AdapterKey(adapter.id, extra_key, adapter.name)


def _namespace(adapter: Adapter | None, extra_key: Hashable) -> str:
    check_extra_key(extra_key)
    return key_bytes((None if adapter is None else adapter_digest(adapter), extra_key)).hex()
