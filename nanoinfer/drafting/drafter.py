"""The seam for drafters: what proposes the next tokens of requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.requests.req import Req
from nanoinfer.sampling.sampler import Sampler


class Drafter(Protocol):
    """Proposes tokens, each of which the next pass accepts if it is what the request would get anyway. So a drafter can be
    wrong, but it cannot change what a request gets.
    """

    def propose(self, reqs: Sequence[Req], most: Sequence[int]) -> list[list[int]]:
        """The likely next tokens of each request, at most `most[i]`, which is at least 1; [] where it has no idea.

        All of a request's tokens, `token_ids[:num_tokens]`, are to be taken into account. Its row has slots for `most[i]`
        tokens behind them. It may write to `token_ids` behind them: that is where the drafts of the next pass are put.
        """
        ...


@dataclass(frozen=True)
class Surroundings:
    """What a drafter may be made from: the cache, whose rows say which slots a request has; the sampler; and the
    ModelRunner of the draft model, None if there is none. `chunked_prefill_size`: as in EngineConfig."""

    cache: CacheManager
    sampler: Sampler
    draft_runner: Any = None
    chunked_prefill_size: int | None = None
