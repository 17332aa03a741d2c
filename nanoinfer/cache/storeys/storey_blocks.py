"""StoreyBlocks: tells which blocks a storey below the pool holds, with its medium, as TreeBlocks does for the tree."""

from collections import Counter, deque
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from nanoinfer.cache.block_events import BlockEvent, BlockRemoved, BlockStored, chained_hashes, check_block_size
from nanoinfer.cache.storeys.block_index import Block, BlockIndex
from nanoinfer.cache.tree_blocks import adapter_of, namespace_of


class StoreyBlocks:
    """The blocks of one storey, in which each has `storey_block_size` tokens: that many whole blocks of an event, or else
    ValueError, because a storey may hold a block without those before it. Two of its blocks may begin alike, and then have
    some blocks of events in common.

    The storey calls `store` and `remove`, and names its blocks by what it likes. `take` returns what has changed since it
    was called last; `changed` is called when there is something to take.
    """

    def __init__(self, medium: str, storey_block_size: int, event_block_size: int, changed: Callable[[], object]):
        check_block_size(event_block_size, "event_block_size")
        if storey_block_size % event_block_size:
            raise ValueError(
                f"event_block_size={event_block_size}: must divide {storey_block_size}, the size of blocks in host memory"
            )
        self.medium, self.block_size, self._each = medium, event_block_size, storey_block_size // event_block_size
        self._changed = changed
        self._held: dict[Hashable, BlockStored] = {}  # by the storey's name
        self._copies = Counter[int]()  # hash → how many of the storey's blocks have it
        self._events: list[BlockEvent] = []

    def store(self, tokens: np.ndarray, extra_key: Hashable, blocks: Iterable[tuple[Hashable, int]]) -> None:
        """The storey holds K/V of these blocks of `tokens` (int64 `[k]`, from the sequence's beginning): their names, and
        how many blocks are before them. It may have said so before."""
        hashes = chained_hashes(tokens, self.block_size, namespace_of(extra_key))
        for name, number in blocks:
            if name in self._held:
                continue
            first, end = number * self._each, (number + 1) * self._each
            parent = hashes[first - 1] if first else None
            ids = tokens[first * self.block_size : end * self.block_size].tolist()
            event = BlockStored(hashes[first:end], parent, ids, self.block_size, *adapter_of(extra_key), self.medium)
            self._held[name] = event
            self._events += _without(event, self._copies)
            self._copies.update(event.block_hashes)
        self._changed()

    def remove(self, names: Iterable[Hashable]) -> None:
        """The storey holds these blocks no more. It may never have said that it did."""
        removed = list[int]()
        for name in names:
            if (event := self._held.pop(name, None)) is not None:
                for block in event.block_hashes:
                    self._copies[block] -= 1
                    if not self._copies[block]:
                        del self._copies[block]
                        removed.append(block)
        if removed:
            self._events.append(BlockRemoved(removed, self.medium))
        self._changed()

    def take(self) -> list[BlockEvent]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events

    def stored(self) -> Iterator[BlockStored]:
        """All blocks that it holds."""
        seen = set[int]()
        for event in self._held.values():
            yield from _without(event, seen)
            seen.update(event.block_hashes)


def _without(event: BlockStored, known: Container[int]) -> list[BlockStored]:
    """The blocks of an event that are not known: its last ones, because with a block, those before it are known."""
    hashes, size = event.block_hashes, event.block_size
    count = sum(block in known for block in hashes)
    if count in (0, len(hashes)):
        return [event] if not count else []
    rest = replace(event, block_hashes=hashes[count:], parent_block_hash=hashes[count - 1])
    return [replace(rest, token_ids=event.token_ids[count * size :])]


class FileBlocks(StoreyBlocks):
    """For a storey of files, whose threads may tell of them at any moment: the rest happens in the thread that takes.

    `extra_key_of`: whether files in a namespace are told of, and under which `extra_key`: [it], or [].
    """

    def __init__(
        self,
        medium: str,
        storey_block_size: int,
        event_block_size: int,
        changed: Callable[[], object],
        extra_key_of: Callable[[bytes], Sequence[Hashable]],
    ):
        super().__init__(medium, storey_block_size, event_block_size, changed)
        self._extra_key_of, self._told = extra_key_of, deque[Callable[[], None]]()

    def found(self, namespace: bytes, tokens: np.ndarray, first: int, keys: Sequence[bytes]) -> None:
        """A file has the blocks of `tokens` int32 from number `first` on, which it names `keys`. Call `tell` soon."""
        self._told.append(lambda: self._found(namespace, tokens, first, keys))

    def lost(self, keys: Sequence[bytes]) -> None:
        """No file has these blocks any more. Call `tell` soon."""
        self._told.append(lambda: self.remove(keys))

    def tell(self) -> None:
        """What was found and lost is to be taken. Do not call it with a lock that a step might want."""
        self._changed()

    def take(self) -> list[BlockEvent]:
        """The events since the last call."""
        while self._told:
            self._told.popleft()()
        return super().take()

    def _found(self, namespace: bytes, tokens: np.ndarray, first: int, keys: Sequence[bytes]) -> None:
        for extra_key in self._extra_key_of(namespace):
            self.store(tokens.astype(np.int64), extra_key, zip(keys, range(first, first + len(keys)), strict=True))


class TellingIndex(BlockIndex):
    """`listener`: who is told; None: nobody, and then it costs nothing."""

    def __init__(self, size: int, block_size: int, leaving: Callable[[Block], object] = lambda _: None):
        self.listener: StoreyBlocks | None = None
        super().__init__(size, block_size, leaving)

    def tell(self, listener: StoreyBlocks) -> None:
        """Tell `listener` of all blocks that are held, and from now on which come and go."""
        self.listener = listener
        for block in self:
            tokens, extra_key = self.tokens_of(block)
            listener.store(tokens, extra_key, [(block, len(tokens) // self.block_size - 1)])

    def clear(self) -> None:
        """As in BlockIndex."""
        if self.listener is not None:
            self.listener.remove(self)
        super().clear()

    def add(self, tokens: np.ndarray, extra_key: Hashable, start: int) -> tuple[np.ndarray, np.ndarray]:
        """As in BlockIndex."""
        positions, slots = super().add(tokens, extra_key, start)
        if self.listener is not None and positions.size:
            path = self._path(tokens, extra_key)
            numbers = (positions[:: self.block_size] // self.block_size).tolist()
            self.listener.store(tokens, extra_key, [(path[number], number) for number in numbers])
        return positions, slots

    def _drop(self, block: Block) -> None:
        super()._drop(block)
        if self.listener is not None:
            self.listener.remove([block])
