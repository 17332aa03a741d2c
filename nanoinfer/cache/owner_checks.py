"""Checks that every slot, row and lock has exactly the owners it must have. They look at the whole pool: for tests."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.requests.req import Req


def check_owners(rows: ReqToTokenPool, pool: TokenToKVPool, tree: RadixCache, running: Sequence[Req]) -> None:
    """RuntimeError unless `free + tree + requests == N`, slot by slot, `free + running` is the number of rows, and each
    node is locked exactly by the requests that hold it. Slot numbers outside the pool are found, too."""
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
        if node.lock_ref != locks[node]:
            raise RuntimeError(f"lock_ref={node.lock_ref}, but {locks[node]} requests hold it")
