"""Admission: decides whether a waiting request joins the EXTEND pass that is being planned.

In-batch prefix sharing (PassPrefixes): waiting requests that start with the same long prefix compute it only once.
"""

from collections.abc import Hashable, Sequence
from enum import Enum, auto
from math import ceil

import numpy as np

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.config import EngineConfig
from nanoinfer.requests.req import Req

# If this pass computes at least this many of the tokens that a request needs, the request waits one pass and then finds
# them in the tree. For fewer tokens, it is better to have one more request in this pass than to save the tokens.
WORTH_WAITING_FOR = 32


class PrefillBudget:
    """How many prompt tokens EXTEND passes may compute before the next DECODE pass: `chunked_prefill_size`; None: no limit.

    EXTEND passes spend the budget. A DECODE pass refills it, and it is also full when no request is decoding. So between
    two tokens of a running request, at most `chunked_prefill_size` prompt tokens are computed, in one pass or in several.
    A prompt that needs more than what is left is computed in chunks: the first chunk ends where the budget does, and the
    next one comes after the refill (Sarathi's chunked prefill, Agrawal et al., 2023, without mixing both kinds of pass).

    A chunk ends on a page boundary. The tree takes whole pages, so everything computed so far goes into it: other
    requests can share it at once, and after a retraction it is found again unless it was evicted.
    """

    def __init__(self, chunked_prefill_size: int | None, page_size: int):
        self._size, self._page_size = chunked_prefill_size, page_size
        self._left = chunked_prefill_size

    def refill(self) -> None:
        """Fill the budget up, because a DECODE pass was made or no request is decoding."""
        self._left = self._size

    def chunk_end(self, start: int, end: int) -> int:
        """Where a chunk that begins at token `start` ends: at `end` if the budget allows, else at the last page boundary
        within the budget. If that is `start` itself, there is nothing to compute now. `start` is on a page boundary.
        """
        if self._left is None or end - start <= self._left:
            return end
        return start + self._left - self._left % self._page_size

    def spend(self, num_tokens: int) -> None:
        """Use up `num_tokens` of the budget: no more than `chunk_end` allowed."""
        if self._left is not None:
            self._left -= num_tokens


class Verdict(Enum):
    """What happens to a candidate."""

    ADMIT = auto()
    WAIT_FOR_PREFIX = auto()  # this pass already computes tokens that it needs; one pass later they are in the tree
    NO_ROOM = auto()  # there are not enough slots for it; admission ends
    NO_BUDGET = auto()  # this pass may not compute any more tokens; admission ends


class PrefixLock:
    """Locks the cached prefix of a waiting request for a `with` block; unlocks it at the end unless `keep` was called."""

    def __init__(self, cache: CacheManager, req: Req):
        self._cache, self._req, self._kept = cache, req, False

    def __enter__(self) -> "PrefixLock":
        self._cache.lock_prefix(self._req)
        return self

    def keep(self) -> None:
        """Keep the lock, because the request is admitted; `CacheManager.release` unlocks its prefix in the end."""
        self._kept = True

    def __exit__(self, *exc_info: object) -> None:
        if not self._kept:
            self._cache.unlock_prefix(self._req)


class PassPrefixes:
    """What the requests of one EXTEND pass compute, to see whether another request should wait for it.

    Why wait a pass instead of sharing within it? Within a pass, every layer would have to read K/V that the same layer
    has only just written for another request, and the second request's row is filled before its prefix exists. One pass
    later, it is a prefix like any other, and the usual look-up in the tree finds it. The wait is short, because the
    second request then computes only what differs. If the first prompt is computed in chunks, the second request waits
    for one chunk after another as long as it needs them; its turn would not have come earlier anyway.
    """

    def __init__(self, cache: CacheManager):
        self._cache = cache
        self._size = cache.page_size * ceil(WORTH_WAITING_FOR / cache.page_size)  # of a beginning: whole pages
        self._computed: set[tuple[TreeNode | None, Hashable, bytes]] = set()

    def add(self, req: Req) -> None:
        """Note that `req` is in the pass and computes its tokens up to `chunk_end`."""
        tokens = req.token_ids[max(req.kv_len, req.prefix_len) : req.chunk_end]
        if len(tokens) >= self._size:
            self._computed.add(self._beginning(req, tokens))

    def worth_waiting_for(self, req: Req) -> bool:
        """True when the pass computes enough of the tokens that `req`, with its prefix locked, needs next: when a request
        in it continues from the same tree node with the same tokens."""
        fresh = req.reusable_tokens[req.prefix_len :]
        if self._cache.radix_cache.disable or len(fresh) < self._size:
            return False
        return self._beginning(req, fresh) in self._computed

    def _beginning(self, req: Req, tokens: np.ndarray) -> tuple[TreeNode | None, Hashable, bytes]:
        return req.last_node, req.extra_key, tokens[: self._size].tobytes()


class Admission:
    """One round of admission: keeps track of what this pass has left, and gives a verdict on each candidate.

    The room is the slots that can be allocated, minus those reserved for running requests: each reserves enough for the
    share `ratio` of the tokens it may still produce. `open`: this pass may take another request.
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
        self._tokens_left = config.max_prefill_tokens  # of one pass; PrefillBudget: of all passes between two DECODEs
        self._reserved = sum(cache.outstanding_size(req, ratio) for req in running)
        self._is_first, self.open = True, self._rows_left > 0
        for req in planned:
            self._count(req)

    def verdict(self, req: Req) -> Verdict:
        """Decide on the next candidate, whose prefix is locked. If there is room, continues its prefix with what the tier
        below the pool has of it, and sets where its chunk ends."""
        if self._reserved + self._cache.outstanding_size(req, self._ratio) > self._cache.obtainable_size():
            return Verdict.NO_ROOM
        if self._cache.next_tier is not None:
            self._cache.next_tier.fetch(req)
        req.chunk_end = self._budget.chunk_end(req.prefix_len, req.num_tokens)
        new_tokens = req.chunk_end - req.prefix_len
        if not new_tokens or (new_tokens > self._tokens_left and not self._is_first):  # or a long prompt never fits
            return Verdict.NO_BUDGET
        if self._prefixes.worth_waiting_for(req):
            return Verdict.WAIT_FOR_PREFIX
        return Verdict.ADMIT

    def add(self, req: Req) -> None:
        """Count `req`, which is admitted. A chunk that does not reach the end of its prompt is the last in its pass."""
        self._rows_left -= 1
        self._reserved += self._cache.outstanding_size(req, self._ratio)
        self.open = self._rows_left > 0 and req.chunk_end == req.num_tokens
        self._count(req)

    def _count(self, req: Req) -> None:
        self._is_first = False
        self._tokens_left -= req.chunk_end - max(req.kv_len, req.prefix_len)  # a new one has no `kv_len` yet
        self._prefixes.add(req)
