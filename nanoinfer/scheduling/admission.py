"""Admission: whether a waiting request joins the EXTEND pass that is being made."""

from collections.abc import Sequence
from enum import Enum, auto

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.config import EngineConfig
from nanoinfer.requests.req import Req
from nanoinfer.scheduling.prefill_budget import PrefillBudget
from nanoinfer.scheduling.prefix_sharing import PassPrefixes


class Verdict(Enum):
    """What happens to a candidate."""

    ADMIT = auto()
    WAIT_FOR_PREFIX = auto()  # this pass computes tokens that it needs: one pass later they are in the tree
    NO_ROOM = auto()  # its slots cannot be had; admission ends
    NO_BUDGET = auto()  # the tokens that this pass may compute are used up; admission ends


class PrefixLock:
    """The cached prefix of a waiting request, locked inside a `with` block and unlocked at its end unless it was kept.

    `newly_locked`: slots that could be had before and cannot while the lock holds.
    """

    def __init__(self, cache: CacheManager, req: Req):
        self._cache, self._req, self._kept = cache, req, False

    def __enter__(self) -> "PrefixLock":
        obtainable = self._cache.obtainable_size()
        self._cache.lock_prefix(self._req)
        self.newly_locked = obtainable - self._cache.obtainable_size()
        return self

    def keep(self) -> None:
        """The request is admitted: `CacheManager.release` unlocks its prefix in the end."""
        self._kept = True

    def __exit__(self, *exc_info: object) -> None:
        if not self._kept:
            self._cache.unlock_prefix(self._req)


class Admission:
    """One round of admission: what this pass has left, and a verdict on each candidate, whose prefix is locked.

    Room is counted so that every running request can have the share `ratio` of the tokens that it may still produce:
    the slots that can be had, less what is promised to them. `open`: this pass may take another request.
    """

    def __init__(
        self,
        config: EngineConfig,
        cache: CacheManager,
        budget: PrefillBudget,
        ratio: float,
        running: Sequence[Req],
        planned: Sequence[Req],
    ):
        self._cache, self._budget, self._ratio = cache, budget, ratio
        self._prefixes = PassPrefixes(cache)
        self._rows_left = cache.req_to_token_pool.available_size()
        self._tokens_left = config.max_prefill_tokens
        self._promised = sum(cache.outstanding_size(req, ratio) for req in running)
        self._is_first, self.open = True, self._rows_left > 0
        for req in planned:
            self._count(req)

    def verdict(self, req: Req) -> Verdict:
        """Decide on the next candidate and, where the budget allows, set where its chunk ends."""
        if self._promised + self._cache.outstanding_size(req, self._ratio) > self._cache.obtainable_size():
            return Verdict.NO_ROOM
        req.chunk_end = self._budget.chunk_end(req.prefix_len, req.num_tokens)
        new_tokens = req.chunk_end - req.prefix_len
        if not new_tokens or (new_tokens > self._tokens_left and not self._is_first):
            return Verdict.NO_BUDGET
        if self._prefixes.worth_waiting_for(req):
            return Verdict.WAIT_FOR_PREFIX
        return Verdict.ADMIT

    def add(self, req: Req) -> None:
        """`req` is admitted. A chunk that does not reach its prompt's end is the last in its pass."""
        self._rows_left -= 1
        self._promised += self._cache.outstanding_size(req, self._ratio)
        self.open = self._rows_left > 0 and req.chunk_end == req.num_tokens
        self._count(req)

    def _count(self, req: Req) -> None:
        self._is_first = False
        self._tokens_left -= req.chunk_end - max(req.kv_len, req.prefix_len)
        self._prefixes.add(req)
