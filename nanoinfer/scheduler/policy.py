"""Schedule policies: the order in which waiting requests are considered for admission.

A policy is a function. It gets the waiting requests in order of arrival, the tree, and a random generator. It returns
all of the requests in its own order and changes nothing. `SCHEDULE_POLICIES["mine"] = function` adds one.
"""

from collections.abc import Callable, Sequence

import numpy as np

from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.registry import SCHEDULE_POLICIES
from nanoinfer.requests.req import Req

Policy = Callable[[Sequence[Req], RadixCache, np.random.Generator], list[Req]]


def longest_prefix_match(reqs: Sequence[Req], cache: RadixCache, rng: np.random.Generator) -> list[Req]:
    """Most cached tokens first, so that cached tokens are used before they are evicted. Ties: in order of arrival."""
    cached = [cache.peek_prefix(req.reusable_tokens, req.extra_key)[0] for req in reqs]
    return [reqs[i] for i in np.argsort(-np.array(cached), kind="stable")]


def first_come_first_served(reqs: Sequence[Req], cache: RadixCache, rng: np.random.Generator) -> list[Req]:
    """In order of arrival."""
    return list(reqs)


def random_order(reqs: Sequence[Req], cache: RadixCache, rng: np.random.Generator) -> list[Req]:
    """In random order: the baseline that other policies are measured against."""
    return [reqs[i] for i in rng.permutation(len(reqs))]


def depth_first_weight(reqs: Sequence[Req], cache: RadixCache, rng: np.random.Generator) -> list[Req]:
    """Depth first: the subtree with the most waiting requests comes first, and requests below a node before those that
    end at the node.

    This puts requests that share a path side by side, so the path is computed once and stays as long as it is needed
    (SGLang's `dfs-weight`). Only the paths of the given requests are visited. Ties: in order of arrival.
    """
    waiting_at: dict[TreeNode, list[Req]] = {}
    weight: dict[TreeNode, int] = {cache.root: 0}
    children: dict[TreeNode, list[TreeNode]] = {}
    for req in reqs:
        node: TreeNode | None
        _, node = cache.peek_prefix(req.reusable_tokens, req.extra_key)
        waiting_at.setdefault(node, []).append(req)
        while node is not None:
            if node not in weight and node.parent is not None:
                children.setdefault(node.parent, []).append(node)
            weight[node] = weight.get(node, 0) + 1
            node = node.parent
    visited, stack = [], [cache.root]
    while stack:  # from the root down, lightest first: this is the wanted order, reversed
        node = stack.pop()
        visited.append(node)
        stack += sorted(children.get(node, []), key=lambda child: weight[child], reverse=True)
    return [req for node in reversed(visited) for req in waiting_at.get(node, [])]


SCHEDULE_POLICIES.update(
    {
        "lpm": longest_prefix_match,
        "fcfs": first_come_first_served,
        "random": random_order,
        "dfs-weight": depth_first_weight,
    }
)
