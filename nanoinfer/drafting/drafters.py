"""The drafters by name, and the scheduler that the configuration asks for."""

import time
from collections.abc import Callable

from nanoinfer.adapters.pool import AdapterPool
from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.config import EngineConfig
from nanoinfer.drafting.draft_model import DraftModel
from nanoinfer.drafting.draft_sampler import DraftSampler
from nanoinfer.drafting.drafter import Drafter, Surroundings
from nanoinfer.drafting.forced import GrammarDrafter
from nanoinfer.drafting.ngram import NgramDrafter
from nanoinfer.drafting.scheduler import DraftingScheduler
from nanoinfer.drafting.tree import TreeDrafter
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.registry import DRAFTERS
from nanoinfer.sampling.sampler import Sampler
from nanoinfer.scheduling.multi_step import make_scheduler
from nanoinfer.scheduling.scheduler import Scheduler


def _draft_model(surroundings: Surroundings) -> Drafter:
    runner = surroundings.draft_runner
    if runner is None:
        raise ValueError("drafter='model': needs a draft_model")
    sampler = DraftSampler(surroundings.sampler.kernels)
    return DraftModel(runner, surroundings.cache, sampler, surroundings.chunked_prefill_size)


DRAFTERS["ngram"] = lambda _: NgramDrafter()
DRAFTERS["tree"] = lambda _: TreeDrafter()
DRAFTERS["model"] = _draft_model
DRAFTERS["grammar"] = lambda _: GrammarDrafter()


def scheduler_for(
    config: EngineConfig,
    cache: CacheManager,
    sampler: Sampler,
    clock: Callable[[], float] = time.perf_counter,
    adapters: AdapterPool | None = None,
    draft_runner: ModelRunner | None = None,
    vocab_size: int | None = None,
) -> Scheduler:
    """The Scheduler that `config` asks for: with drafts, in groups of decode passes, or neither."""
    if not config.drafters:
        return make_scheduler(config, cache, clock, adapters)
    surroundings = Surroundings(cache, sampler, draft_runner, config.chunked_prefill_size)
    drafters = [DRAFTERS[name](surroundings) for name in config.drafters]
    return DraftingScheduler(config, cache, drafters, clock, adapters, vocab_size)
