"""TreeDrafter: what followed here last time, in any request. The radix tree knows it already."""

from collections.abc import Hashable, Sequence
from itertools import islice

import numpy as np

from nanoinfer.cache.indices import common_prefix_len
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.requests.req import Req

MOST_CHILDREN = 64  # of a node, looked at to find the one that was used last


class TreeDrafter:
    """Follows the request's tokens down from the node that it holds a lock on, and proposes what is behind them.

    Where several continuations are known, it takes the one that was used last. It changes nothing in the tree, and marks
    nothing as used.
    """

    def propose(self, reqs: Sequence[Req], most: Sequence[int]) -> list[list[int]]:
        return [self._drafts(req, count) for req, count in zip(reqs, most, strict=True)]

    def _drafts(self, req: Req, count: int) -> list[int]:
        if req.last_node is None:
            return []
        tokens = continuation(req.last_node, req.token_ids[req.tree_len : req.num_tokens], req.extra_key, count)
        return [int(token) for token in tokens]


def continuation(node: TreeNode, tokens: np.ndarray, extra_key: Hashable, count: int) -> np.ndarray:
    """At most `count` tokens that follow `tokens`, which follow `node`, in the tree; none if it does not know `tokens`."""
    following = np.empty(0, dtype=np.int64)
    while len(following) < count:
        child = _child(node, tokens, extra_key)
        if child is None:
            break
        shared = common_prefix_len(child.key, tokens)
        if shared < min(len(tokens), len(child)):
            break
        node, tokens, following = child, tokens[shared:], np.concatenate((following, child.key[shared:]))
    return following[:count]


def _child(node: TreeNode, tokens: np.ndarray, extra_key: Hashable) -> TreeNode | None:
    """The child to follow: the one that `tokens` lead to, or if they end within its first page, the last used of those."""
    page = len(next(iter(node.children))[1]) // tokens.itemsize if node.children else 0
    if page and len(tokens) >= page:
        return node.children.get((extra_key, tokens[:page].tobytes()))
    start = tokens.tobytes()
    newest = islice(reversed(node.children.items()), MOST_CHILDREN)
    fitting = [child for (key, page), child in newest if key == extra_key and page.startswith(start)]
    return max(fitting, key=lambda child: child.last_access_time, default=None)
