"""Why a request waits although it is next: another one computes the prefix that it needs, or it still cannot fit.

In-batch prefix sharing (PassPrefixes): waiting requests that start with the same long prefix compute it only once.
Blocked is an optimisation that you can skip on a first reading: the scheduler decides the same without it.
"""

from collections.abc import Hashable, Sequence
from math import ceil

import numpy as np

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.requests.req import Req

# If this pass computes at least this many of the tokens that a request needs, the request waits one pass and then finds
# them in the tree. For fewer tokens, it is better to have one more request in this pass than to save the tokens.
WORTH_WAITING_FOR = 32
State = tuple[int, int, int]  # requests that have arrived, requests that have ended, insertions into the tree


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


class Blocked:
    """Remembers the first request that did not fit, and the engine's state at that time.

    As long as the state is the same, admission would end at the same request again. Checking that needs no look-up in
    the tree.
    """

    def __init__(self, cache: CacheManager):
        self._cache = cache
        self._req: Req | None = None

    def note(self, req: Req, state: State, covered: int) -> None:
        """`req` does not fit. `covered`: tokens of its prefix that other requests have locked anyway, so that they take no
        extra room."""
        self._req, self._noted, self._covered = req, state, covered

    def forget(self) -> None:
        """Something has changed that may let it in."""
        self._req = None

    def still(self, state: State, running: Sequence[Req], ratio: float) -> bool:
        """True when the request still cannot fit. A lower ratio gives more room and needs less."""
        if self._req is None or not running or state != self._noted:
            return False
        promised = sum(self._cache.outstanding_size(req, ratio) for req in running)
        room = self._cache.obtainable_size() - promised
        return self._cache.outstanding_size(self._req, ratio) - self._covered > room
