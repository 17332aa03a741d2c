"""In-batch prefix sharing: requests with the same long beginning compute it once."""

from collections.abc import Hashable

import numpy as np

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.radix_cache import common_prefix_len
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.requests.req import Req

# A request waits one pass when this pass computes at least so many of the tokens that it needs: then they are in the tree.
# For fewer, a pass with more requests in it is worth more than the tokens saved.
WORTH_WAITING_FOR = 32


class PassPrefixes:
    """What the requests of one EXTEND pass compute, so that others can tell whether waiting for it is worthwhile.

    Why wait a pass, instead of sharing within it? Within a pass every layer would have to read K/V that the same layer
    of another request has only just written, and the second request's row is made before its prefix is there. One pass
    later it is a prefix like any other, found by the one mechanism there is. The wait is short, since the second
    request then computes only what differs. Behind a prompt that is computed in chunks it waits for chunk after chunk,
    as long as they are what it needs; its turn would not have come earlier anyway.
    """

    def __init__(self, cache: CacheManager):
        self._cache = cache
        self._computed: dict[tuple[TreeNode | None, Hashable, bytes], np.ndarray] = {}

    def add(self, req: Req) -> None:
        """`req` is in the pass: it computes its tokens up to `chunk_end`."""
        tokens = req.token_ids[max(req.kv_len, req.prefix_len) : req.chunk_end]
        self._computed.setdefault(self._key(req, tokens), tokens)

    def worth_waiting_for(self, req: Req) -> bool:
        """True when the pass computes enough of what `req`, with its prefix locked, would compute.

        Found by the place in the tree and the next page; where several requests match, the first counts.
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
