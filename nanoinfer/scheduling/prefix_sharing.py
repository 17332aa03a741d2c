"""In-batch prefix sharing: waiting requests that start with the same long prefix compute it only once."""

from collections.abc import Hashable

import numpy as np

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.radix_cache import common_prefix_len
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.requests.req import Req

# If this pass computes at least this many of the tokens that a request needs, the request waits one pass and then finds
# them in the tree. For fewer tokens, it is better to have one more request in this pass than to save the tokens.
WORTH_WAITING_FOR = 32


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
        self._computed: dict[tuple[TreeNode | None, Hashable, bytes], np.ndarray] = {}

    def add(self, req: Req) -> None:
        """Note that `req` is in the pass and computes its tokens up to `chunk_end`."""
        tokens = req.token_ids[max(req.kv_len, req.prefix_len) : req.chunk_end]
        self._computed.setdefault(self._key(req, tokens), tokens)

    def worth_waiting_for(self, req: Req) -> bool:
        """True when the pass computes enough of the tokens that `req`, with its prefix locked, needs next.

        It looks for a request that continues from the same tree node with the same page of tokens; the first one counts.
        """
        fresh = req.reusable_tokens[req.prefix_len :]
        if self._cache.radix_cache.disable or len(fresh) < WORTH_WAITING_FOR:
            return False
        computed = self._computed.get(self._key(req, fresh))
        if computed is None:
            return False
        shared = common_prefix_len(fresh, computed)
        return shared - shared % self._cache.page_size >= WORTH_WAITING_FOR

    def _key(self, req: Req, tokens: np.ndarray) -> tuple[TreeNode | None, Hashable, bytes]:
        return req.last_node, req.extra_key, tokens[: self._cache.page_size].tobytes()
