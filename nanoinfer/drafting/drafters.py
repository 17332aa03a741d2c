"""The drafters by name, and the scheduler that the configuration asks for."""

import time
from collections.abc import Callable, Sequence

import torch

from nanoinfer.adapters.pool import AdapterPool
from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.config import EngineConfig
from nanoinfer.drafting.draft_model import DraftModel
from nanoinfer.drafting.drafter import Drafter, Surroundings
from nanoinfer.drafting.ngram import NgramDrafter
from nanoinfer.drafting.scheduler import DraftingScheduler
from nanoinfer.drafting.tree import TreeDrafter
from nanoinfer.model.layers.logits_processor import Likeliest
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.registry import DRAFTERS
from nanoinfer.requests.req import NO_TOKEN, Req
from nanoinfer.sampling.sampler import Sampler, chooses_by_itself, likeliest_of
from nanoinfer.scheduling.multi_step import make_scheduler
from nanoinfer.scheduling.scheduler import Scheduler


class GrammarDrafter:
    """Where a grammar allows one continuation only, such as the next key of a JSON object, it is the draft."""

    def propose(self, reqs: Sequence[Req], most: Sequence[int]) -> list[list[int]]:
        return [
            [] if req.matcher is None else req.matcher.forced_tokens()[:count]
            for req, count in zip(reqs, most, strict=True)
        ]


class DraftSampler(Sampler):
    """Chooses drafts as a Sampler chooses tokens. Where logits hold NaN or infinity, the request gets NO_TOKEN and nothing
    is raised: a draft may be missing."""

    def sample(self, logits: torch.Tensor | Likeliest, reqs: Sequence[Req]) -> torch.Tensor:
        """As in Sampler. No logits processor gets to see logits that are not finite."""
        if isinstance(logits, Likeliest) or all(chooses_by_itself(req) for req in reqs):
            return super().sample(logits, reqs)
        finite = likeliest_of(logits).logits.isfinite()
        if finite.all():
            return super().sample(logits, reqs)
        rows = finite.nonzero()[:, 0].tolist()
        token_ids = torch.full((len(reqs),), NO_TOKEN)
        if rows:
            token_ids[rows] = super().sample(logits[rows], [reqs[row] for row in rows]).cpu()
        return token_ids

    def _checked(self, token_ids: torch.Tensor, numbers: torch.Tensor, reqs: Sequence[Req]) -> torch.Tensor:
        return token_ids.where(numbers.isfinite(), NO_TOKEN)


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
