"""Prints a radix tree for people, and checks for tests that its nodes do not contradict each other."""

from collections.abc import Iterable

import numpy as np

from nanoinfer.cache.tree_node import TreeNode


def node_line(depth: int, node: TreeNode) -> str:
    """One node as a line of `RadixCache.pretty_print`: tokens, slots, locks."""
    space = "" if node.edge[0] is None else f" extra_key={node.edge[0]!r}"
    return (
        f"{'   ' * (depth - 1)}└─ {len(node)} tokens {_abridged(node.key)} in slots {_abridged(node.value)}"
        f" lock_ref={node.lock_ref}{space}"
    )


def check_nodes(nodes: Iterable[tuple[int, TreeNode]], root: TreeNode, page_size: int) -> tuple[int, int]:
    """RuntimeError when links, page boundaries, locks or the eviction queue are inconsistent. `nodes`: see RadixCache.

    Returns how many tokens are in locked nodes and how many in unlocked ones.
    """
    sizes = {True: 0, False: 0}
    for _, node in nodes:
        parent, edge = node.parent, (node.edge[0], node.key[:page_size].tobytes())
        problems = {
            "a node without whole pages": not len(node) or len(node) % page_size,
            "not as many slots as tokens": len(node.key) != len(node.value),
            "wrong parent": parent is None or parent.children.get(edge) is not node,
            "locked below an unlocked parent": parent not in (root, None) and parent.lock_ref < node.lock_ref,
            "an evictable leaf not in the queue": node.queued is None and not node.children and not node.lock_ref,
        }
        for problem, present in problems.items():
            if present:
                raise RuntimeError(f"radix cache: {problem}: {len(node)} tokens, lock_ref={node.lock_ref}")
        sizes[node.lock_ref > 0] += len(node)
    return sizes[True], sizes[False]


def _abridged(array: np.ndarray, limit: int = 6) -> str:
    shown = ", ".join(map(str, array[:limit].tolist()))
    return f"[{shown}, ...]" if len(array) > limit else f"[{shown}]"
