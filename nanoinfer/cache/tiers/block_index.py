"""BlockIndex: which blocks of tokens host memory holds, in which of its slots, and which block leaves first.

A block is `block_size` tokens that follow each other, from a multiple of `block_size` on, and what comes before them. The
tree evicts the ends of sequences first, so host memory often holds a block without those before it, which are in the pool:

    root(extra_key) ── tokens 0..15 (in the pool) ── tokens 16..31 (slots 32..47) ── tokens 32..47 (slots 0..15)
                                                  └─ tokens 16..31 (slots 16..31)

Blocks are found by their tokens, never by a hash of them.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from hashlib import blake2b
from heapq import heappop, heappush

import numpy as np

from nanoinfer.cache.tiers.tier_blocks import TierBlocks
from nanoinfer.cache.tree_blocks import adapter_of, namespace_of

TOKEN_BYTES = 8  # token ids are int64


class Block:
    """The tokens of one block (`key`: their bytes), behind those of `parent`. A root has none; its key is an `extra_key`.

    `start`: the first of its slots. None: its K/V isn't here; the node is only on the way to a block that is. `digest`: of
    all tokens up to its end, by which the tier below knows it; None for what may not go there.
    """

    __slots__ = ("children", "digest", "key", "parent", "start")

    def __init__(self, key: Hashable, parent: "Block | None", digest: bytes | None = None):
        self.key, self.parent, self.digest = key, parent, digest
        self.children: dict[Hashable, Block] = {}
        self.start: int | None = None


def block_digests(digest: bytes, tokens: np.ndarray, block_size: int) -> list[bytes]:
    """A digest for each whole block of `tokens` (int64 `[k]`), which come after the block with this `digest`: that of the
    digest before it and of the block's tokens."""
    data, digests, width = tokens.tobytes(), list[bytes](), block_size * TOKEN_BYTES
    for at in range(0, len(data) - width + 1, width):
        digest = blake2b(digest + data[at : at + width], digest_size=32).digest()
        digests.append(digest)
    return digests


class BlockIndex:
    """Blocks in `size` slots, a multiple of `block_size`. It knows tokens and slots, and moves no K/V.

    When there is no room, the block that was used least recently leaves. Using a block uses those before it, too, which
    count as used after it: so a block never leaves before those behind it. `leaving` is called with each block that has to
    leave, while its K/V is still there. `first_digest`: the digest before a sequence's first block, from its `extra_key`.
    """

    def __init__(self, size: int, block_size: int, leaving: Callable[[Block], object] = lambda _: None):
        if size < 1 or size % block_size:
            raise ValueError(f"size={size}: must be a positive multiple of block_size={block_size}")
        self.size, self.block_size, self._leaving = size, block_size, leaving
        self.first_digest: Callable[[Hashable], bytes | None] = lambda _: None
        self.sink: TierBlocks | None = None  # gets an event for each block that comes or goes
        self._held: OrderedDict[Block, None] = OrderedDict()  # those with slots, the least recently used first
        self.clear()

    def clear(self) -> None:
        """Forget all blocks."""
        if self.sink is not None:
            self.sink.remove(self)
        for block in self._held:  # others may still know them
            block.start = None
        self._free = list(range(0, self.size, self.block_size))  # where blocks may begin: a heap, the lowest first
        self._roots: dict[Hashable, Block] = {}
        self._held.clear()

    def __len__(self) -> int:
        """How many tokens are held."""
        return len(self._held) * self.block_size

    def __iter__(self) -> Iterator[Block]:
        """The blocks that are held, the least recently used first."""
        return iter(list(self._held))

    def root(self, extra_key: Hashable) -> Block | None:
        """What the blocks of an `extra_key` hang from; None if there are none."""
        return self._roots.get(extra_key)

    def reach(self, tokens: np.ndarray, extra_key: Hashable, start: int) -> int:
        """Up to which position whole blocks hold `tokens` (int64 `[k]`) from position `start` on, which may be inside of a
        block: a multiple of `block_size` above `start`, or else `start`."""
        held = sum(1 for _ in self._from(tokens, extra_key, start))
        return start // self.block_size * self.block_size + held * self.block_size if held else start

    def use(self, tokens: np.ndarray, extra_key: Hashable, start: int) -> np.ndarray:
        """As `look_up`. These blocks have been used now."""
        slots = self.look_up(tokens, extra_key, start)
        if slots.size:
            self._touch(self._path(tokens, extra_key))
        return slots

    def look_up(self, tokens: np.ndarray, extra_key: Hashable, start: int) -> np.ndarray:
        """The slots of the positions `start .. reach(...) - 1`, int64."""
        starts = np.array([block.start for block in self._from(tokens, extra_key, start)], dtype=np.int64)
        return self.slots_of(starts)[start % self.block_size :]

    def add(self, tokens: np.ndarray, extra_key: Hashable, start: int) -> tuple[np.ndarray, np.ndarray]:
        """Give slots to the blocks of `tokens` (int64 `[k]`) that end behind position `start`, as far as they have none.

        Returns the positions whose K/V the caller must now put there, and their slots, both int64. Other blocks
        leave to make room, but none that comes before these in the sequence: if there are too few slots, the last blocks
        get none.
        """
        size, path = self.block_size, self._path(tokens, extra_key, create=True)
        self._touch(path)
        needed, left = [i for i in range(start // size, len(path)) if path[i].start is None], list[Block]()
        while self._held and len(self._free) < len(needed):
            oldest = next(iter(self._held))
            if oldest in path:
                break
            self._leaving(oldest)
            self._drop(oldest)
            left.append(oldest)
        added = needed[: len(self._free)]
        for i in added:  # only now: when a block leaves, the sink may look at those before it
            path[i].start = heappop(self._free)
            self._held[path[i]] = None
        self._touch(path)
        for block in (*left, *path[-1:]):
            self._prune(block)
        if added and self.sink is not None:
            self._report(tokens, extra_key, [(path[i], i) for i in added])
        positions = np.array(added, dtype=np.int64) * size
        return self.slots_of(positions), self.slots_of(np.array([path[i].start for i in added], dtype=np.int64))

    def forget(self, unwanted: Callable[[Hashable], bool]) -> None:
        """Drop all blocks under the `extra_key`s of which `unwanted` is true."""
        for key in [key for key in self._roots if unwanted(key)]:
            for block in self._below(self._roots.pop(key)):
                if block.start is not None:
                    self._drop(block)

    def attach(self, sink: TierBlocks) -> None:
        """Report all blocks that are held to `sink`, and from now on which come and go."""
        self.sink = sink
        for block in self:
            tokens, extra_key = self.tokens_of(block)
            self._report(tokens, extra_key, [(block, len(tokens) // self.block_size - 1)])

    def tokens_of(self, block: Block) -> tuple[np.ndarray, Hashable]:
        """All tokens from the sequence's start to the block's end, int64, and their `extra_key`."""
        parts = []
        while block.parent is not None:
            assert isinstance(block.key, bytes)
            parts.append(block.key)
            block = block.parent
        return np.frombuffer(b"".join(reversed(parts)), dtype=np.int64), block.key

    def slots_of(self, starts: Sequence[int] | np.ndarray) -> np.ndarray:
        """The slots of blocks with these first ones, int64."""
        return (np.asarray(starts, dtype=np.int64)[:, None] + np.arange(self.block_size)).ravel()

    def check_integrity(self) -> None:
        """RuntimeError unless every slot is free or has one block, and every block is held or is before one that is."""
        blocks = [block for root in self._roots.values() for block in self._below(root)]
        held = {block for block in blocks if block.start is not None}
        taken = [block.start for block in held if block.start is not None]
        order = {block: number for number, block in enumerate(self._held)}
        problems = {
            "slots without or with two owners": sorted(taken + self._free)
            != list(range(0, self.size, self.block_size)),
            "the order of use has other blocks": held != order.keys(),
            "a block that leads nowhere": any(not block.children and block.start is None for block in blocks),
            "a block that leaves before one behind it": any(
                order.get(block, 0) > order.get(above, 0) for block in held for above in _held_above(block)
            ),
        }
        for problem, present in problems.items():
            if present:
                raise RuntimeError(
                    f"host memory: {problem}: {len(held)} of {len(blocks)} blocks held, {self.size} slots"
                )

    # --- how it works --------------------------------------------------------------------------------------------

    def _path(self, tokens: np.ndarray, extra_key: Hashable, create: bool = False) -> list[Block]:
        """The blocks of `tokens` in order, as far as there are any; all complete ones with `create`."""
        block = self._roots.get(extra_key)
        if block is None:
            if not create:
                return []
            block = self._roots[extra_key] = Block(extra_key, None, self.first_digest(extra_key))
        path, data, width = [], tokens.tobytes(), self.block_size * TOKEN_BYTES
        for at in range(0, len(data) - width + 1, width):
            key = data[at : at + width]
            child = block.children.get(key)
            if child is None:
                if not create:
                    break
                digest = None if block.digest is None else blake2b(block.digest + key, digest_size=32).digest()
                child = block.children[key] = Block(key, block, digest)
            path.append(child)
            block = child
        return path

    def _from(self, tokens: np.ndarray, extra_key: Hashable, start: int) -> Iterator[Block]:
        """The held blocks of `tokens` from position `start` on, up to the first that is missing."""
        for block in self._path(tokens, extra_key)[start // self.block_size :]:
            if block.start is None:
                return
            yield block

    def _touch(self, path: list[Block]) -> None:
        for block in reversed(path):
            if block.start is not None:
                self._held.move_to_end(block)

    def _drop(self, block: Block) -> None:
        assert block.start is not None
        heappush(self._free, block.start)
        block.start = None
        del self._held[block]
        if self.sink is not None:
            self.sink.remove([block])

    def _report(self, tokens: np.ndarray, extra_key: Hashable, blocks: list[tuple[Block, int]]) -> None:
        assert self.sink is not None
        self.sink.store(tokens, namespace_of(extra_key), adapter_of(extra_key), blocks)

    def _prune(self, block: Block) -> None:
        """Forget a block without K/V that leads nowhere, and those before it for which that is now true, too."""
        while block.start is None and not block.children:
            if block.parent is None:
                self._roots.pop(block.key, None)
                return
            block.parent.children.pop(block.key, None)
            block = block.parent

    def _below(self, root: Block) -> Iterator[Block]:
        stack = [*root.children.values()]
        while stack:
            block = stack.pop()
            yield block
            stack += block.children.values()


def _held_above(block: Block) -> Iterator[Block]:
    above = block.parent
    while above is not None:
        if above.start is not None:
            yield above
        above = above.parent
