"""The storey below an engine's pool, made from its parts as the configuration asks for it. Files: see files.py."""

from collections.abc import Callable

import torch

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.storeys.host import FetchCosts, HostStorey
from nanoinfer.config import EngineConfig
from nanoinfer.drafting.draft_model import DraftModel
from nanoinfer.engine.stats import StepMeter
from nanoinfer.scheduling.scheduler import Scheduler


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
