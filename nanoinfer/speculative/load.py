"""What a configuration asks for: the drafters by name, the scheduler, and the draft model that serves a model."""

import time
from collections.abc import Callable, Collection
from pathlib import Path

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.config import EngineConfig
from nanoinfer.model.loader import LoadedModel, find_network, load_model
from nanoinfer.model.lora.pool import AdapterPool
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.registry import DRAFTERS
from nanoinfer.sampling.sampler import Sampler
from nanoinfer.scheduler.multi_step import make_scheduler
from nanoinfer.scheduler.scheduler import Scheduler
from nanoinfer.speculative.draft_model import DraftModel, DraftSampler
from nanoinfer.speculative.drafters import Drafter, GrammarDrafter, NgramDrafter, Surroundings, TreeDrafter
from nanoinfer.speculative.scheduler import SpeculativeScheduler

BUNDLED_DRAFT_MODELS = {"story": "story-draft"}


def draft_model_of(model: str | Path, draft_model: str | Path | None, drafters: Collection[str]) -> str | Path | None:
    """What to load as the draft model, None for nothing. ValueError if one is needed and missing, or given for nothing."""
    if draft_model is not None and (not isinstance(draft_model, str | Path) or not str(draft_model)):
        raise ValueError(f"draft_model={draft_model!r}: must be a model's name or directory, or None")
    if "model" not in drafters:
        if draft_model is not None:
            raise ValueError(f"draft_model={str(draft_model)!r}: is used by drafter='model' only")
        return None
    chosen = draft_model or BUNDLED_DRAFT_MODELS.get(str(model))
    if chosen is None:
        raise ValueError(f"draft_model: drafter='model' needs one, a smaller model with the vocabulary of {model}")
    return chosen


def load_draft_model(draft_model: str | Path, model: LoadedModel, kernels: str = "auto") -> LoadedModel:
    """Load the draft model of `model`, for the same device, context and dtype. Models of one family often have tables of
    different sizes for one tokenizer; the draft model's get the size of `model`'s (see `resize_vocabulary`).

    ValueError if it has other tokens, or was not trained for as many positions. Errors as `load_model`.
    """
    vocab_size, name = model.config.vocab_size, f"draft_model={str(draft_model)!r}"
    loaded = load_model(
        draft_model, model.dtype, model.device, None, kernels, vocab_size=vocab_size, generation_config="none"
    )
    own = find_network(loaded.path)[0].vocab_size
    known = 0  # how many tokens both surely have
    if loaded.tokenizer is not None and model.tokenizer is not None:
        ids, draft_ids = model.tokenizer.hf_tokenizer.get_vocab(), loaded.tokenizer.hf_tokenizer.get_vocab()
        if ids != draft_ids:
            differ = min(token for token in ids.keys() | draft_ids.keys() if ids.get(token) != draft_ids.get(token))
            raise ValueError(f"{name}: must have the tokens of {model.name}, but {differ!r} is another one")
        known = max(ids.values()) + 1
    if own != vocab_size and not 0 < known <= min(own, vocab_size):
        raise ValueError(f"{name}: has {own} tokens, must have those of {model.name}: {vocab_size}")
    if loaded.max_context_len < model.max_context_len:
        raise ValueError(
            f"{name}: has {loaded.max_context_len} positions, must have at least max_context_len={model.max_context_len}"
        )
    return loaded


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
    return SpeculativeScheduler(config, cache, drafters, clock, adapters, vocab_size)
