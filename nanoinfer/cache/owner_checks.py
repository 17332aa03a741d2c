"""Does every slot, row and lock have exactly the owners that it must have? Costs the pool's size: for tests."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.requests.req import Req


def check_owners(rows: ReqToTokenPool, pool: TokenToKVPool, tree: RadixCache, running: Sequence[Req]) -> None:
    """RuntimeError unless `free + tree + requests == N`, slot by slot, `free + running` is the number of rows, and each
    node is locked by the requests that hold it. Slots that lie outside the pool are seen, too."""
    of_requests = [rows.req_to_token[req.req_pool_idx, req.tree_len : req.allocated_len].numpy() for req in running]
    everyone = (pool.free_slots().numpy(), tree.slots().numpy(), *of_requests)
    slots, counts = np.unique(np.concatenate((np.arange(pool.size), *everyone)), return_counts=True)
    wanted = ((slots >= 0) & (slots < pool.size)).astype(int)
    owners = counts - wanted  # each slot of the pool was counted once more, so that one without an owner shows
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
