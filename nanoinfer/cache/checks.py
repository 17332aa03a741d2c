"""Checks for tests: every slot, row and lock has the owners it must have; trees and free lists contradict nothing.

They look at the whole pool and the whole tree. And how a node is printed for people.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from nanoinfer.cache.indices import Indices
from nanoinfer.cache.tree_node import TreeNode


def check_owners(rows: Any, pool: Any, tree: Any, running: Sequence[Any]) -> None:
    """RuntimeError unless `free + tree + requests == N`, slot by slot, `free + running` is the number of rows, and each
    node is locked exactly by the requests that hold it, and in the tree. Slot numbers outside the pool are found, too.
    `rows`, `pool`, `tree`: those of a CacheManager, which import this file."""
    of_requests = [rows.req_to_token[req.req_pool_idx, req.tree_len : req.allocated_len].numpy() for req in running]
    everyone = (pool.free_slots().numpy(), tree.slots().numpy(), *of_requests)
    slots, counts = np.unique(np.concatenate((np.arange(pool.size), *everyone)), return_counts=True)
    wanted = ((slots >= 0) & (slots < pool.size)).astype(int)
    owners = counts - wanted  # `arange` counted each slot of the pool once more, so that slots without an owner show up
    wrong = np.flatnonzero(owners != wanted)
    for i in wrong[:1]:
        raise RuntimeError(f"slot {slots[i]} has {owners[i]} owners, must have {wanted[i]} ({wrong.size} such slots)")
    if rows.available_size() + len(running) != rows.size:
        raise RuntimeError(f"rows: {rows.available_size()} free + {len(running)} running")
    locks = Counter[TreeNode]()
    for req in running:
        node = req.last_node
        while node is not None:
            locks[node] += 1
            node = node.parent
    for _, node in tree.nodes():
        if node.lock_ref != (held := locks.pop(node, 0)):
            raise RuntimeError(f"lock_ref={node.lock_ref}, but {held} requests hold it")
    for node in locks:
        if len(node):  # all but the root
            raise RuntimeError(f"{len(node)} tokens have left the tree, but {locks[node]} requests hold them")


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


def first_wrong(
    slots: np.ndarray, others: Indices, is_free: np.ndarray, in_tree: np.ndarray, page_size: int
) -> tuple[int, int, str] | None:
    """The first wrong slot among `slots` (int64): its index, the slot, and what is wrong with it. None when all are fine.

    `others`: further slots from the same call; no slot may be in both. `is_free`, `in_tree`: bool, one mark per page of
    the pool. It looks at the whole pool.
    """
    size, ordered = is_free.size * page_size, np.sort(slots)
    starts, ends = ordered[np.diff(ordered, prepend=-2) != 1], ordered[np.diff(ordered, append=-2) != 1]
    in_page = (slots[::page_size, None] // page_size * page_size + np.arange(page_size)).ravel()[: slots.size]
    for offenders, why in (
        (slots[(slots < 0) | (slots >= size)], f"outside 0..{size - 1}"),
        (slots[np.isin(slots // page_size, np.flatnonzero(is_free))], "already free"),
        (ordered[1:][ordered[1:] == ordered[:-1]], "given twice"),
        (slots[np.isin(slots, others)], "given twice"),
        (starts[starts % page_size != 0], f"not the start of a page of {page_size}"),
        (ends[(ends + 1) % page_size != 0], f"not the end of a page of {page_size}"),
        (slots[np.isin(slots // page_size, np.flatnonzero(in_tree))], "in a radix tree already"),
        (slots[slots != in_page], f"not in its place in a page of {page_size}"),
    ):
        if offenders.size:
            return int(np.flatnonzero(slots == offenders[0])[-1]), int(offenders[0]), why
    return None
