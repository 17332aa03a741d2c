"""The storeys below an engine's pool, host memory and files, made from its parts as the configuration asks for them."""

from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from weakref import WeakKeyDictionary

import torch

from nanoinfer.adapters.adapter import Adapter, adapter_digest
from nanoinfer.adapters.manager import Adapters
from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.storeys.disk import DiskStorey
from nanoinfer.cache.storeys.files import FileStore, namespace_bytes
from nanoinfer.cache.storeys.host import FetchCosts, HostStorey
from nanoinfer.config import EngineConfig
from nanoinfer.drafting.draft_model import DraftModel
from nanoinfer.engine.stats import StepMeter
from nanoinfer.requests.adapter_key import AdapterKey
from nanoinfer.scheduling.adapter_turns import FetchTurns
from nanoinfer.scheduling.scheduler import Scheduler

FIRST_LOOK_S = 2.0  # for how long an engine waits until what is in the folder is known


def host_storey_for(
    config: EngineConfig, cache: CacheManager, scheduler: Scheduler, meter: StepMeter, clock: Callable[[], float]
) -> HostStorey | None:
    """None without `host_cache_tokens` and `cache_dir`. ValueError if K/V is kept in a way that cannot be copied."""
    size = config.host_cache_tokens
    if size is None and config.cache_dir is None:
        return None
    try:
        buffers = slot_buffers(cache, scheduler)
    except ValueError as error:
        name = "cache_dir" if size is None else "host_cache_tokens"
        raise ValueError(f"{name}={getattr(config, name)!r}: {error}; must be None") from error
    costs = FetchCosts(meter.seconds_per_prompt_token)
    return HostStorey(cache, buffers, config.max_total_tokens if size is None else size, costs, clock)


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
    host = cache.storey
    assert config.cache_dir is not None
    described = {**fields, "layout": host.memory.layout, "page_size": config.page_size}
    store = FileStore(config.cache_dir, config.cache_dir_max_bytes, described, host.memory.token_bytes, host.block_size)
    with suppress(TimeoutError):  # a slow disk: then it is found a little later
        store.refresh().result(FIRST_LOOK_S)
    digests: WeakKeyDictionary[Adapter, str] = WeakKeyDictionary()

    def namespace_of(extra_key: Hashable) -> bytes | None:
        if not isinstance(extra_key, AdapterKey):
            return namespace_bytes((None, extra_key))
        adapter = next((each for each in adapters.values() if each.id == extra_key.id), None)
        if adapter is None:
            return None
        if adapter not in digests:
            digests[adapter] = adapter_digest(adapter)
        return namespace_bytes((digests[adapter], extra_key.extra_key))

    costs = FetchCosts(lambda: host.costs.computing)
    disk = DiskStorey(cache, host, store, namespace_of, costs, clock)
    scheduler.adapter_turns = FetchTurns(adapters.pool, disk)
