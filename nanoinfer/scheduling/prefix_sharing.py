"""In-batch prefix sharing: requests with the same long beginning compute it once."""

from collections.abc import Hashable

import numpy as np

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.radix_cache import common_prefix_len
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.requests.req import Req

# A waiting request that would compute at least so many tokens which another one computes in this very pass waits a pass
# and finds them in the tree. For fewer, a pass with more requests in it is worth more than the tokens saved.
WORTH_WAITING_FOR = 32


class PassPrefixes:
    """What the requests of one EXTEND pass compute, for others to see whether it is worth waiting for.

    Waiting a pass, rather than sharing within it: within a pass every layer would have to read K/V that the same layer
    of another request has just written, so the second request's prefix would not be there when its row is made; a pass
    later it is a prefix like any other, through the one mechanism there is. The wait is short: the second request then
    computes what is its own only. Behind a prompt that comes in chunks it waits for chunk after chunk, as long as these
    are what it needs, too; its own turn would not have come earlier.
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

        Looked up by the place in the tree and the next page; of several such the first counts.
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
