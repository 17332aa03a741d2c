"""RadixCache: a prefix tree over token ids whose nodes own slots of the TokenToKVPool.

Each node has a run of tokens and the slots that hold their K/V. Follow a prompt's tokens down from the root: for every
token on the way, K/V is already computed (SGLang's RadixAttention, Zheng et al., 2024, section 3).
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from nanoinfer.cache.block_events import BlockEvent
from nanoinfer.cache.checks import check_nodes, node_line
from nanoinfer.cache.eviction import EvictionQueue
from nanoinfer.cache.indices import Indices, as_int_array, common_prefix_len
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.tree_blocks import TreeBlocks
from nanoinfer.cache.tree_node import Edge, TreeNode
from nanoinfer.cache.tree_observer import Observers

TokenIds = Sequence[int] | np.ndarray | torch.Tensor


class MatchResult(NamedTuple):
    """`indices`: int32 `[k]`, the slots of the k matched tokens. `last_node`: where the match ends (the root if k=0)."""

    indices: torch.Tensor
    last_node: TreeNode


class RadixCache:
    """The tree. It owns the slots in its nodes; it keeps `req_to_token_pool` only for pictures that show both.

    - `page_size`: matches, splits and inserts are in whole pages; a child is found in one look-up, by its first page.
    - `policy`: which unlocked leaf is evicted first: `lru` (least recently used), `lfu` (least often), `fifo` (oldest).
    - `disable`: nothing ever matches, and nothing is kept.
    - `extra_key` (any hashable) in `match_prefix` and `insert` keeps namespaces apart: each key has its own subtrees.
    - `events`: called with a list of what has changed after each operation that changes what the tree holds, in blocks of
      `event_block_size` tokens (see `block_events.py`); not called any more once it has raised. None: nobody asks.

    Whoever wants to know what happens to the tree joins its `observers` (see `tree_observer.py`).
    """

    def __init__(
        self,
        req_to_token_pool: ReqToTokenPool,
        token_to_kv_pool: TokenToKVPool,
        page_size: int = 1,
        policy: str = "lru",
        disable: bool = False,
        events: Callable[[list[BlockEvent]], object] | None = None,
        event_block_size: int = 16,
    ):
        if page_size < 1 or page_size % token_to_kv_pool.page_size:
            raise ValueError(f"page_size={page_size}: must be a multiple of the pool's {token_to_kv_pool.page_size}")
        self.req_to_token_pool, self.token_to_kv_pool = req_to_token_pool, token_to_kv_pool
        self.page_size, self.policy, self.disable = page_size, policy, disable
        self.insertions = 0  # optimisation: until it grows, what did not match before cannot match now
        self.root = TreeNode((None, b""), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32), None, 0)
        self._clear(EvictionQueue(policy))
        self.observers = Observers() if events is None else Observers(TreeBlocks(self.nodes, events, event_block_size))

    # --- what users of the tree call -----------------------------------------------------------------------------

    def match_prefix(self, token_ids: TokenIds, extra_key: Hashable = None, count_hit: bool = True) -> MatchResult:
        """The longest prefix of `token_ids`, in whole pages, whose K/V the tree holds.

        Marks the path as used now, and counts a hit unless `count_hit=False` (for a request that is not admitted yet).
        May split a node in two, which changes no sizes. Lock `last_node` before anything can evict it.
        Costs O(matched tokens).
        """
        tokens = self._whole_pages(token_ids)
        if self.disable:
            tokens = tokens[:0]
        path = self._walk(tokens, extra_key)
        if count_hit and path:
            self.count_hit(path[-1])
        slots = np.concatenate([node.value for node in path]) if path else np.empty(0, dtype=np.int32)
        return MatchResult(torch.from_numpy(slots), path[-1] if path else self.root)

    def count_hit(self, node: TreeNode) -> None:
        """Count one hit on `node` and on everything above it: `lfu` evicts the leaf with the fewest hits."""
        for ancestor in self._up_to_root(node):
            ancestor.hit_count += 1
        self._eviction_queue.note_change(node)
        self.observers.hit(node)

    def peek_prefix(self, token_ids: TokenIds, extra_key: Hashable = None) -> tuple[int, TreeNode]:
        """Optimisation: a `match_prefix` for scheduling policies that splits, copies and marks nothing.

        Returns `(k, node)`: how many leading tokens would match, and the node in which the match ends.
        """
        length, last_node = 0, self.root
        if not self.disable:
            for node, matched in self._descend(self._whole_pages(token_ids), extra_key):
                length, last_node = length + matched, node
        return length, last_node

    def insert(
        self, token_ids: TokenIds, indices: Indices, extra_key: Hashable = None, grow: TreeNode | None = None
    ) -> int:
        """Add `token_ids`, whose K/V is in the slots `indices` (of the same length), to the tree in whole pages.

        Returns n, how many leading tokens were in the tree already. For those the tree keeps its own slots, so the caller
        frees its duplicates among `indices[:n]`. The tree owns the slots from n on. The tokens of an incomplete last page
        are not added, and the caller keeps their slots. With `disable` nothing is added and n is 0.

        `grow` (optimisation): an unlocked leaf to lengthen in place if the new tokens directly follow it, so that a
        sequence that is not shared stays one node.

        Raises ValueError, with nothing changed, when the lengths differ, or when a slot that the tree would take over is
        outside the pool, free, given twice (even if the caller keeps the other one: among the first n, or in an
        incomplete page), in a tree already, or not in its place in a whole page. The message names index and slot.
        """
        slots = as_int_array(indices, "indices")
        if len(slots) != len(token_ids):
            raise ValueError(f"indices: {len(slots)} slots for {len(token_ids)} tokens; the numbers must be equal")
        if self.disable:
            return 0
        self.observers.check_key(extra_key)
        tokens = self._whole_pages(token_ids)
        known, _ = self.peek_prefix(tokens, extra_key)
        self.token_to_kv_pool.hand_to_tree(slots, known, len(tokens))
        path = self._walk(tokens, extra_key)
        if known < len(tokens):
            parent = path[-1] if path else self.root
            new_slots = slots[known : len(tokens)].astype(np.int32)
            self._append(parent, tokens[known:].copy(), new_slots, extra_key, grow)
            self.insertions += 1
        return known

    def evict(self, num_tokens: int) -> int:
        """Free at least `num_tokens` slots to the pool. Whole unlocked leaves go, one by one, in the policy's order.

        Returns how many were freed: fewer only when nothing evictable is left. A parent whose last child is evicted
        becomes a leaf itself. When `free` raises, the leaf whose slots it did not take stays in the tree.
        """
        if num_tokens < 0:
            raise ValueError(f"num_tokens={num_tokens}: must not be negative")
        num_freed, gone = 0, list[TreeNode]()
        while num_freed < num_tokens and (leaf := self._eviction_queue.pop()) is not None:
            try:
                self.observers.evicting(leaf)
                self.token_to_kv_pool.free(leaf.value)
            except BaseException:
                self._eviction_queue.offer(leaf)  # it stays in the tree, with its slots
                self.observers.evicted(gone)
                raise
            num_freed += len(leaf)
            self._remove_leaf(leaf)
            gone.append(leaf)
        self.observers.evicted(gone)
        return num_freed

    def evict_keys(self, unwanted: Callable[[Hashable], bool]) -> int:
        """Free everything under the `extra_key`s of which `unwanted` says that nobody will ask for them again.

        Returns how many tokens were freed. ValueError, with nothing changed, while a request relies on one of them.
        """
        going = [node for edge, node in self.root.children.items() if unwanted(edge[0])]
        if locked := sum(node.lock_ref > 0 for node in going):
            raise ValueError(f"evict_keys: {locked} of these branches are locked by running requests; must be 0")
        for node in going:
            going += node.children.values()  # parents before children
        if going:
            self.token_to_kv_pool.free(np.concatenate([node.value for node in going]))
        for node in reversed(going):
            self._remove_leaf(node)
        self._eviction_queue.forget_removed()
        self.observers.evicted(going[::-1])
        return sum(map(len, going))

    def inc_lock_ref(self, node: TreeNode) -> None:
        """Lock `node` and everything above it, because a request is about to rely on that path."""
        for ancestor in self._up_to_root(node):
            if ancestor.lock_ref == 0:
                self._evictable_size -= len(ancestor)
                self._protected_size += len(ancestor)
            ancestor.lock_ref += 1
        self.observers.locked(node)

    def dec_lock_ref(self, node: TreeNode) -> None:
        """Undo one `inc_lock_ref(node)`. ValueError, with nothing changed, when there is none to undo."""
        path = list(self._up_to_root(node))
        if any(ancestor.lock_ref == 0 for ancestor in path):
            raise ValueError("dec_lock_ref: this path is not locked")
        for ancestor in path:
            ancestor.lock_ref -= 1
            if ancestor.lock_ref == 0:
                self._evictable_size += len(ancestor)
                self._protected_size -= len(ancestor)
                self._eviction_queue.offer(ancestor)
        self.observers.unlocked(node)

    def evictable_size(self) -> int:
        """How many tokens eviction could free now."""
        return self._evictable_size

    def protected_size(self) -> int:
        """How many tokens are on locked paths."""
        return self._protected_size

    def total_size(self) -> int:
        """How many tokens are in the tree."""
        return self._evictable_size + self._protected_size

    def reset(self) -> None:
        """Empty the tree and free every slot it owns. ValueError while a request still relies on a path."""
        if self._protected_size:
            raise ValueError(f"reset: {self._protected_size} tokens are locked by running requests; must be 0")
        self.token_to_kv_pool.free(self.slots())
        self.clear()

    def clear(self) -> None:
        """Empty the tree, whatever relies on it or has become of its slots: for who takes these back, too."""
        nodes = [node for _, node in self.nodes()]
        for node in nodes:
            node.parent = None  # from now on, locking one of them is an error
        self._clear(EvictionQueue(self.policy))
        self.observers.reset(nodes)

    # --- looking at it -------------------------------------------------------------------------------------------

    def nodes(self) -> Iterator[tuple[int, TreeNode]]:
        """Every node except the root, as `(depth, node)` with depth from 1: parents before children, oldest child first."""
        stack = [(1, child) for child in reversed(self.root.children.values())]
        while stack:
            depth, node = stack.pop()
            yield depth, node
            stack += [(depth + 1, child) for child in reversed(node.children.values())]

    def slots(self) -> torch.Tensor:
        """Every slot the tree owns, int32 `[total_size()]`. It visits the whole tree: for checks and pictures."""
        values = [node.value for _, node in self.nodes()]
        return torch.from_numpy(np.concatenate(values) if values else np.empty(0, dtype=np.int32))

    def __str__(self) -> str:
        head = f"root: {self.total_size()} tokens, {self.protected_size()} of them protected"
        return "\n".join([head, *(node_line(depth, node) for depth, node in self.nodes())])

    def pretty_print(self) -> None:
        """Print the tree, one line per node: tokens, slots, locks."""
        print(self)

    def check_integrity(self) -> None:
        """RuntimeError when sizes, links, page boundaries or the eviction queue are inconsistent. Visits the whole tree."""
        counted = check_nodes(self.nodes(), self.root, self.page_size)
        if counted != (self._protected_size, self._evictable_size):
            raise RuntimeError(
                f"radix cache sizes: counted {counted}, kept {(self._protected_size, self._evictable_size)}"
            )

    # --- how it works --------------------------------------------------------------------------------------------

    def _clear(self, eviction_queue: EvictionQueue) -> None:
        self._clock = 0
        self.num_nodes = 0  # without the root
        self._evictable_size: int = 0
        self._protected_size: int = 0
        self._eviction_queue = eviction_queue
        self.root.children.clear()  # the root object stays, because running requests that matched nothing refer to it

    def _whole_pages(self, token_ids: TokenIds) -> np.ndarray:
        tokens = as_int_array(token_ids, "token_ids")
        return tokens[: len(tokens) - len(tokens) % self.page_size]

    def _edge(self, tokens: np.ndarray, extra_key: Hashable) -> Edge:
        return extra_key, tokens[: self.page_size].tobytes()

    def _descend(self, tokens: np.ndarray, extra_key: Hashable) -> Iterator[tuple[TreeNode, int]]:
        """The nodes below the root that match `tokens`, each with how many of its tokens match, in whole pages.

        Only the last one may match in part.
        """
        node = self.root
        while len(tokens):
            child = node.children.get(self._edge(tokens, extra_key))
            if child is None:
                return
            length = len(child)
            matched = common_prefix_len(child.key, tokens)
            matched -= matched % self.page_size
            yield child, matched
            if matched < length:
                return
            node, tokens = child, tokens[matched:]

    def _walk(self, tokens: np.ndarray, extra_key: Hashable) -> list[TreeNode]:
        """The nodes below the root that make up the longest known prefix of `tokens`; splits the last one if need be.

        Marks all of them as used now.
        """
        self._clock += 1
        path = []
        for node, matched in self._descend(tokens, extra_key):
            if matched < len(node):
                node = self._split(node, matched)
            node.last_access_time = self._clock
            path.append(node)
        if path:
            self._eviction_queue.note_change(path[-1])  # the others have children, so they are not in the queue
            self.observers.used(path[-1])
        return path

    def _split(self, node: TreeNode, length: int) -> TreeNode:
        """Split `node` after `length` tokens and return the new upper part.

        `node` itself becomes the lower part, so a request that locked `node` still holds the whole path.
        """
        assert node.parent is not None
        key, value = node.key[:length].copy(), node.value[:length].copy()  # views would keep the whole array alive
        upper = TreeNode(node.edge, key, value, node.parent, node.creation_time)
        upper.lock_ref, upper.hit_count = node.lock_ref, node.hit_count
        node.parent.children[upper.edge] = upper
        self.num_nodes += 1
        node.key, node.value, node.parent = node.key[length:], node.value[length:], upper
        node.edge = self._edge(node.key, upper.edge[0])
        upper.children[node.edge] = node
        self._eviction_queue.note_change(node)
        self.observers.split(upper, node)
        return upper

    def _append(
        self, parent: TreeNode, tokens: np.ndarray, slots: np.ndarray, extra_key: Hashable, grow: TreeNode | None
    ) -> None:
        if parent is grow and parent is not self.root and not parent.children and not parent.lock_ref:
            parent.key, parent.value = np.concatenate((parent.key, tokens)), np.concatenate((parent.value, slots))
            self._evictable_size += len(tokens)
            self._eviction_queue.note_change(parent)
            self.observers.grew(parent, len(tokens))
            return
        leaf = TreeNode(self._edge(tokens, extra_key), tokens, slots, parent, self._clock)
        parent.children[leaf.edge] = leaf
        self.num_nodes += 1
        self._evictable_size += len(leaf)
        self._eviction_queue.offer(leaf)
        self.observers.inserted(leaf)

    def _remove_leaf(self, leaf: TreeNode) -> None:
        parent = leaf.parent
        assert parent is not None
        del parent.children[leaf.edge]
        self.num_nodes -= 1
        self._evictable_size -= len(leaf)
        leaf.parent = None
        if parent is not self.root:
            self._eviction_queue.offer(parent)

    def _up_to_root(self, node: TreeNode) -> Iterator[TreeNode]:
        while node is not self.root:
            if node.parent is None:
                raise ValueError("this node is no longer in the tree")
            yield node
            node = node.parent
