"""The tiers below an engine's pool, host memory and files, made from its parts as the configuration asks for them."""

import json
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from hashlib import blake2b, sha256
from weakref import WeakKeyDictionary

import torch

from nanoinfer.cache.block_events import key_bytes
from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.tiers.block_files import BlockFiles
from nanoinfer.cache.tiers.disk import DiskTier
from nanoinfer.cache.tiers.host import HostTier
from nanoinfer.config import EngineConfig
from nanoinfer.model.lora.adapter import Adapter, adapter_digest
from nanoinfer.model.lora.manager import Adapters
from nanoinfer.requests.request import AdapterKey
from nanoinfer.scheduler.scheduler import Scheduler
from nanoinfer.speculative.draft_model import DraftModel
from nanoinfer.version import __version__

FORMAT = "2"  # of the files
FIRST_LOOK_S = 2.0  # for how long an engine waits until what is in the folder is known


def host_tier_for(config: EngineConfig, cache: CacheManager, scheduler: Scheduler) -> HostTier | None:
    """None without `host_cache_tokens` and `cache_dir`. ValueError if K/V is kept in a way that cannot be copied."""
    size = config.host_cache_tokens
    if size is None and config.cache_dir is None:
        return None
    try:
        buffers = slot_buffers(cache, scheduler)
    except ValueError as error:
        name = "cache_dir" if size is None else "host_cache_tokens"
        raise ValueError(f"{name}={getattr(config, name)!r}: {error}; must be None") from error
    return HostTier(cache, buffers, config.max_total_tokens if size is None else size)


def slot_buffers(cache: CacheManager, scheduler: Scheduler) -> list[torch.Tensor]:
    """All that a slot of the pool has, by slot (see HostMemory): the model's K/V, and a draft model's. ValueError if K/V is
    kept in a way that cannot be copied."""
    storage = cache.token_to_kv_pool.kv_storage
    buffers: list[torch.Tensor] = [*storage.slot_buffers()]
    if not buffers:
        raise ValueError(f"{type(storage).__name__} does not say which buffers it has")
    for drafter in getattr(scheduler, "drafters", ()):
        if isinstance(drafter, DraftModel):
            buffers += drafter.slot_buffers()
    return buffers


def add_files(
    config: EngineConfig,
    cache: CacheManager,
    scheduler: Scheduler,
    adapters: Adapters,
    fields: Mapping[str, str],
    clock: Callable[[], float],
) -> None:
    """Put files below an engine's host memory. `fields`: all that K/V depends on beside tokens, adapters and `extra_key`.
    ValueError for a folder that cannot be used."""
    host = cache.next_tier
    assert config.cache_dir is not None
    described = {**fields, "format": FORMAT, "package": __version__, "block_size": str(host.block_size)}
    described |= {"layout": host.memory.layout, "page_size": str(config.page_size)}
    fingerprint = sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
    sizes = host.block_size, host.memory.token_bytes
    files = BlockFiles(config.cache_dir, fingerprint, *sizes, max_bytes=config.cache_dir_max_bytes)
    digests: WeakKeyDictionary[Adapter, str] = WeakKeyDictionary()

    def first_digest(extra_key: Hashable) -> bytes | None:
        if not isinstance(extra_key, AdapterKey):
            return blake2b(key_bytes((None, extra_key)), digest_size=32).digest()
        adapter = next((each for each in adapters.values() if each.id == extra_key.id), None)
        if adapter is None:
            return None
        if adapter not in digests:
            digests[adapter] = adapter_digest(adapter)
        return blake2b(key_bytes((digests[adapter], extra_key.extra_key)), digest_size=32).digest()

    scheduler.prefetch_gate.disk = disk = DiskTier(cache, host, files, first_digest, clock)
    with suppress(TimeoutError):  # a slow disk: what is there is found a little later
        disk.look().result(FIRST_LOOK_S)
