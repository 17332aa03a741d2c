"""DraftTree: drafts of what may follow a request's newest token, as a tree that one pass of forward_tensor verifies.

Node 0, the root, is the newest token: it is sampled already, and has no K/V yet. All other nodes are drafts. A node sees
the cached tokens, its ancestors and itself, so its logits are those of its own path. Siblings have the same position.

In the pass, the K/V of node n is stored at index `context + n` of its request, in the order of the nodes. Later passes
look for the token at depth d of the accepted path at index `context + d`. So its K/V moves there (`keep_accepted`). That is
a plain copy, because rotary embeddings have seen the position `context + d` all along.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from nanoinfer.cache.indices import as_int_array
from nanoinfer.paged.checks import KVCache, as_integer, check_range, int_array


@dataclass(frozen=True)
class DraftTree:
    """`tokens[n]` is the token of node n, and `parents[n]` its parent; the root's is −1. Parents come before children.

    Raises ValueError naming the field and the node: for an empty tree, lists of different lengths, a parent that does not
    come before its child, a negative token, and a token that one of its siblings has, too.
    """

    tokens: Sequence[int]
    parents: Sequence[int]

    def __post_init__(self) -> None:
        tokens, parents = as_int_array(self.tokens, "tokens"), as_int_array(self.parents, "parents")
        if not len(tokens):
            raise ValueError("tokens: is empty; a tree has at least its root, the newest token")
        if len(parents) != len(tokens):
            raise ValueError(f"parents: {len(parents)} for {len(tokens)} tokens; the numbers must be equal")
        check_range("tokens", tokens, 0)
        if parents[0] != -1:
            raise ValueError(f"parents[0]={parents[0]}: must be -1, because node 0 is the root")
        for node in range(1, len(parents)):
            if not 0 <= parents[node] < node:
                raise ValueError(f"parents[{node}]={parents[node]}: must be in 0..{node - 1}, a node before it")
        object.__setattr__(self, "tokens", tuple(tokens.tolist()))
        object.__setattr__(self, "parents", tuple(parents.tolist()))
        first: dict[tuple[int, int], int] = {}
        for node, key in enumerate(zip(self.parents, self.tokens, strict=True)):
            if (sibling := first.setdefault(key, node)) != node:
                raise ValueError(
                    f"tokens[{node}]={key[1]}: must differ from its sibling, node {sibling}; both follow node {key[0]}"
                )

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Of each node; the root's is 0."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    def path(self, node: int) -> list[int]:
        """The nodes from the root to `node`, both included. ValueError when there is no such node."""
        if not 0 <= node < len(self):
            raise ValueError(f"node={node}: must be in 0..{len(self) - 1}")
        path = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def children(self, node: int) -> list[int]:
        """The nodes that follow `node` directly, in order."""
        return [child for child, parent in enumerate(self.parents) if parent == node]

    def position_ids(self, context: int) -> torch.Tensor:
        """Positions of the nodes when `context` tokens come before the root: int64 [n], `context` + depth."""
        return torch.tensor(self.depths) + as_integer("context", context, least=0)

    def spec_mask(self, context: int) -> torch.Tensor:
        """What each node sees of its sequence, float32 [n, context + n], by index: 0 = see, −inf = hide."""
        before = as_integer("context", context, least=0)
        mask = torch.full((len(self), before + len(self)), -torch.inf)
        mask[:, :before] = 0
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                mask[node] = mask[parent]  # all that the parent sees, the parent itself included
            mask[node, before + node] = 0
        return mask

    def accepted(self, sampled: Sequence[int]) -> tuple[list[int], int]:
        """Follow the sampled tokens through the tree: the accepted path, which begins with the root, and what follows it.

        `sampled[n]`: the token sampled from the logits of node n. From the root on, a child is accepted if it holds the
        token sampled at its parent. The token sampled at the last accepted node is the request's next newest token.
        ValueError when there is not one token for each node.
        """
        tokens = as_int_array(sampled, "sampled").tolist()
        if len(tokens) != len(self):
            raise ValueError(f"sampled: {len(tokens)} for {len(self)} nodes; the numbers must be equal")
        child = {key: node for node, key in enumerate(zip(self.parents, self.tokens, strict=True))}
        path = [0]
        while (node := child.get((path[-1], tokens[path[-1]]))) is not None:
            path.append(node)
        return path, tokens[path[-1]]


def tree_inputs(
    trees: Sequence[DraftTree], contexts: Sequence[int], block_tables: torch.Tensor, block_size: int
) -> dict[str, Any]:
    """The arguments of `forward_tensor` that follow from one tree per request; logits will have a row per node.

    `contexts` [B]: how many tokens of each request have K/V. `block_tables` [B, max_blocks], as in `forward_tensor`, with
    blocks for all nodes. Returns `input_ids`, `position_ids`, `slots`, `input_lengths`, `q_lens` and `spec_mask`; tensors
    are on the device of `block_tables`. Changes nothing. ValueError naming the argument when lengths differ, a number is
    out of range, or a node has no block.
    """
    size = as_integer("block_size", block_size)
    before = _contexts(contexts, len(trees), "trees")
    tables = int_array("block_tables", block_tables, ndim=2)
    q_lens = [len(tree) for tree in trees]
    new = [np.arange(context, context + n) for context, n in zip(before, q_lens, strict=True)]
    slots = np.concatenate(_slots(tables, new, size))
    lengths = [context + n for context, n in zip(before, q_lens, strict=True)]
    mask = torch.full((sum(q_lens), max(lengths)), -torch.inf)
    start = 0
    for tree, context, length in zip(trees, before, lengths, strict=True):
        mask[start : start + len(tree), :length] = tree.spec_mask(context)
        start += len(tree)
    device = block_tables.device
    return {
        "input_ids": torch.tensor([token for tree in trees for token in tree.tokens], device=device),
        "position_ids": torch.cat([tree.position_ids(n) for tree, n in zip(trees, before, strict=True)]).to(device),
        "slots": torch.from_numpy(slots).to(device),
        "input_lengths": torch.tensor(lengths, device=device),
        "q_lens": q_lens,
        "spec_mask": mask.to(device),
    }


def keep_accepted(
    kv_cache: KVCache, block_tables: torch.Tensor, contexts: Sequence[int], paths: Sequence[Sequence[int]]
) -> list[int]:
    """Move the K/V of each request's accepted path, in place, to where later passes look for it; returns new contexts, [B].

    `contexts` [B] and `block_tables`: as in the pass. `paths`: nodes of each tree, as `DraftTree.accepted` returns them. In
    every layer, K and V of node `path[d]` are copied from index `context + path[d]` to `context + d`. Slots after the path
    keep what they have: the next pass writes over it.

    Raises ValueError naming the argument, before anything is copied: when lengths differ, a number is out of range, a path
    does not begin with node 0 or does not ascend, a token has no block, or a slot that would be written is used by
    another request, too.
    """
    before = _contexts(contexts, len(paths), "paths")
    tables = int_array("block_tables", block_tables, ndim=2)
    nodes = [as_int_array(path, f"paths[{i}]") for i, path in enumerate(paths)]
    for i, path in enumerate(nodes):
        if not len(path) or path[0] != 0:
            raise ValueError(f"paths[{i}]={path.tolist()}: must begin with 0, the root")
        if (np.diff(path) < 1).any():
            raise ValueError(f"paths[{i}]={path.tolist()}: must ascend, because parents come before children")
    num_blocks, size = kv_cache[0][0].shape[:2]
    check_range("block_tables", tables, -1, num_blocks - 1)
    used = _slots(tables, [np.arange(n + path[-1] + 1) for n, path in zip(before, nodes, strict=True)], size)
    moves = [  # [2, nodes that move]: from, to
        np.stack((slots[n + path], slots[n : n + len(path)]))[:, path != np.arange(len(path))]
        for slots, n, path in zip(used, before, nodes, strict=True)
    ]
    source, target = np.concatenate(moves, axis=1)
    slots, uses = np.unique(np.concatenate(used), return_counts=True)
    for slot in target[np.isin(target, slots[uses > 1])][:1]:
        raise ValueError(f"block_tables: slot {slot} is used more than once, so no accepted draft can move there")
    (from_blocks, from_offsets), (to_blocks, to_offsets) = (
        [torch.from_numpy(part).to(kv_cache[0][0].device) for part in divmod(where, size)] for where in (source, target)
    )
    for layer in kv_cache:
        for cache in layer:
            cache[to_blocks, to_offsets] = cache[from_blocks, from_offsets]  # reads all of them before it writes
    return [n + len(path) for n, path in zip(before, nodes, strict=True)]


def _contexts(contexts: Sequence[int], batch_size: int, what: str) -> list[int]:
    """`contexts` as ints. ValueError unless there is one for each request, and none is negative."""
    if not batch_size:
        raise ValueError(f"{what}: is empty; a pass needs at least one request")
    if len(contexts) != batch_size:
        raise ValueError(f"contexts: {len(contexts)} for {batch_size} {what}; the numbers must be equal")
    return [as_integer(f"contexts[{i}]", context, least=0) for i, context in enumerate(contexts)]


def _slots(tables: np.ndarray, indices: Sequence[np.ndarray], block_size: int) -> list[np.ndarray]:
    """The slots of these tokens of each request. ValueError when one has no block."""
    if len(tables) != len(indices):
        raise ValueError(f"block_tables: {len(tables)} rows for {len(indices)} requests; the numbers must be equal")
    slots = []
    for i, (row, index) in enumerate(zip(tables, indices, strict=True)):
        blocks, offsets = np.divmod(index, block_size)
        if blocks[-1] >= len(row):
            raise ValueError(f"block_tables: {len(row)} blocks per row, too few for token {index[-1]} of request {i}")
        for k in np.flatnonzero(row[blocks] < 0)[:1]:
            raise ValueError(f"block_tables[{i}, {blocks[k]}]=-1: token {index[k]} of request {i} needs a block")
        slots.append(row[blocks] * block_size + offsets)
    return slots
