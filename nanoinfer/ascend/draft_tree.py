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

from nanoinfer.ascend.checks import KVCache, check_range, int_array
from nanoinfer.cache.indices import as_int_array


@dataclass(frozen=True)
class DraftTree:
    """`tokens[n]` is the token of node n, and `parents[n]` its parent; the root's is −1. Parents come before children, and
    siblings have different tokens. ValueError naming the field and the node when it is not so."""

    tokens: Sequence[int]
    parents: Sequence[int]

    def __post_init__(self) -> None:
        for name in ("tokens", "parents"):
            object.__setattr__(self, name, tuple(as_int_array(getattr(self, name), name).tolist()))
        if not len(self.parents) == len(self.tokens) > 0:
            raise ValueError(
                f"parents: {len(self.parents)} for {len(self.tokens)} tokens; must be equal, and at least 1"
            )
        for node, parent in enumerate(self.parents):
            if not min(node - 1, 0) <= parent < node:
                raise ValueError(f"parents[{node}]={parent}: must be a node before it, or -1 for node 0, the root")
        if len(set(zip(self.parents, self.tokens, strict=True))) < len(self.tokens):
            raise ValueError(f"tokens={list(self.tokens)}: nodes with the same parent must have different tokens")

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Of each node; the root's is 0."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    def position_ids(self, context: int) -> torch.Tensor:
        """Positions of the nodes when `context` tokens come before the root: int64 [n], `context` + depth."""
        return torch.tensor(self.depths) + context

    def spec_mask(self, context: int) -> torch.Tensor:
        """What each node sees of its sequence, float32 [n, context + n], by index: 0 = see, −inf = hide."""
        mask = torch.full((len(self), context + len(self)), -torch.inf)
        mask[:, :context] = 0
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                mask[node] = mask[parent]  # all that the parent sees, the parent itself included
            mask[node, context + node] = 0
        return mask

    def accepted(self, sampled: Sequence[int]) -> tuple[list[int], int]:
        """Follow the sampled tokens through the tree: the accepted path, which begins with the root, and what follows it.

        `sampled[n]`: the token sampled from the logits of node n. From the root on, a child is accepted if it holds the
        token sampled at its parent. The token sampled at the last accepted node is the request's next newest token.
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
    are on the device of `block_tables`. Changes nothing. ValueError when lengths differ, or a node has no block.
    """
    tables, q_lens = int_array("block_tables", block_tables, ndim=2), [len(tree) for tree in trees]
    new = [np.arange(context, context + n) for context, n in zip(contexts, q_lens, strict=True)]
    slots = np.concatenate(_slots(tables, new, block_size))
    lengths = [context + n for context, n in zip(contexts, q_lens, strict=True)]
    masks = [
        torch.nn.functional.pad(tree.spec_mask(context), (0, max(lengths) - length), value=-torch.inf)
        for tree, context, length in zip(trees, contexts, lengths, strict=True)
    ]
    device = block_tables.device
    return {
        "input_ids": torch.tensor([token for tree in trees for token in tree.tokens], device=device),
        "position_ids": torch.cat([tree.position_ids(n) for tree, n in zip(trees, contexts, strict=True)]).to(device),
        "slots": torch.from_numpy(slots).to(device),
        "input_lengths": torch.tensor(lengths, device=device),
        "q_lens": q_lens,
        "spec_mask": torch.cat(masks).to(device),
    }


def keep_accepted(
    kv_cache: KVCache, block_tables: torch.Tensor, contexts: Sequence[int], paths: Sequence[Sequence[int]]
) -> list[int]:
    """Move the K/V of each request's accepted path, in place, to where later passes look for it; returns new contexts, [B].

    `contexts` [B] and `block_tables`: as in the pass. `paths`: nodes of each tree, as `DraftTree.accepted` returns them. In
    every layer, K and V of node `path[d]` are copied from index `context + path[d]` to `context + d`. Slots after the path
    keep what they have: the next pass writes over it.

    Raises ValueError naming the argument, before anything is copied: when lengths differ, a path does not begin with node 0
    or does not ascend, a token has no block, or a slot that would be written is used by another request, too.
    """
    tables, nodes = int_array("block_tables", block_tables, ndim=2), [np.array(path) for path in paths]
    for i, path in enumerate(nodes):
        if path[0] != 0 or (np.diff(path) < 1).any():
            raise ValueError(f"paths[{i}]={path.tolist()}: must begin with 0, the root, and ascend")
    num_blocks, size = kv_cache[0][0].shape[:2]
    check_range("block_tables", tables, -1, num_blocks - 1)
    used = _slots(tables, [np.arange(n + path[-1] + 1) for n, path in zip(contexts, nodes, strict=True)], size)
    moves = [  # [2, nodes that move]: from, to
        np.stack((slots[n + path], slots[n : n + len(path)]))[:, path != np.arange(len(path))]
        for slots, n, path in zip(used, contexts, nodes, strict=True)
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
    return [n + len(path) for n, path in zip(contexts, nodes, strict=True)]


def _slots(tables: np.ndarray, indices: Sequence[np.ndarray], block_size: int) -> list[np.ndarray]:
    """The slots of these tokens of each request. ValueError when one has no block."""
    slots = []
    for i, (row, index) in enumerate(zip(tables, indices, strict=True)):
        blocks, offsets = np.divmod(index, block_size)
        if blocks[-1] >= len(row) or (row[blocks] < 0).any():
            raise ValueError(f"block_tables[{i}]={row.tolist()}: has no block for a token of the first {index[-1] + 1}")
        slots.append(row[blocks] * block_size + offsets)
    return slots
