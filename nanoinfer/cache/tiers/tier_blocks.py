"""TierBlocks: reports which blocks a tier below the pool holds, with its medium, as TreeBlocks does for the tree."""

from collections import Counter, deque
from collections.abc import Callable, Container, Hashable, Iterable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from nanoinfer.cache.block_events import BlockEvent, BlockRemoved, BlockStored, chained_hashes, check_block_size

Adapter = tuple[int | None, str | None]  # id and name


class TierBlocks:
    """The blocks of one tier, in which each has `tier_block_size` tokens: that many whole blocks of an event, or else
    ValueError, because a tier may hold a block without those before it. Two of its blocks may begin alike, and then have
    some blocks of events in common.

    The tier calls `store` and `remove`, from any thread, and names its blocks by what it likes. `take` does what that asks
    for, and returns what has changed since it was called last; `changed` is called when there is something to take.
    """

    def __init__(self, medium: str, tier_block_size: int, event_block_size: int, changed: Callable[[], object]):
        check_block_size(event_block_size, "event_block_size")
        if tier_block_size % event_block_size:
            raise ValueError(
                f"event_block_size={event_block_size}: must divide {tier_block_size}, the size of blocks in host memory"
            )
        self.medium, self.block_size, self._each = medium, event_block_size, tier_block_size // event_block_size
        self._changed, self._unsent = changed, deque[Callable[[], None]]()
        self._held: dict[Hashable, BlockStored] = {}  # by the tier's name
        self._copies = Counter[int]()  # hash → how many of the tier's blocks have it
        self._events: list[BlockEvent] = []

    def store(
        self, tokens: np.ndarray, namespace: int, adapter: Adapter, blocks: Iterable[tuple[Hashable, int]]
    ) -> None:
        """The tier holds K/V of these blocks of `tokens` (int64 `[k]`, from the sequence's beginning): their names, and
        how many blocks are before them. It may have said so before. `namespace`: its hash (see `namespace_hash`)."""
        self._unsent.append(partial(self._store, tokens, namespace, adapter, list(blocks)))
        self._changed()

    def remove(self, names: Iterable[Hashable]) -> None:
        """The tier holds these blocks no more. It may never have said that it did."""
        self._unsent.append(partial(self._remove, list(names)))
        self._changed()

    def take(self) -> list[BlockEvent]:
        """The events since the last call."""
        while self._unsent:
            self._unsent.popleft()()
        events, self._events = self._events, []
        return events

    def stored(self) -> Iterator[BlockStored]:
        """All blocks that it held when `take` was called last."""
        seen = set[int]()
        for event in self._held.values():
            yield from _without(event, seen)
            seen.update(event.block_hashes)

    def _store(
        self, tokens: np.ndarray, namespace: int, adapter: Adapter, blocks: Iterable[tuple[Hashable, int]]
    ) -> None:
        hashes = chained_hashes(tokens, self.block_size, namespace)
        for name, number in blocks:
            if name in self._held:
                continue
            first, end = number * self._each, (number + 1) * self._each
            parent = hashes[first - 1] if first else None
            ids = tokens[first * self.block_size : end * self.block_size].tolist()
            event = BlockStored(hashes[first:end], parent, ids, self.block_size, *adapter, self.medium)
            self._held[name] = event
            self._events += _without(event, self._copies)
            self._copies.update(event.block_hashes)

    def _remove(self, names: Iterable[Hashable]) -> None:
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


def _without(event: BlockStored, known: Container[int]) -> list[BlockStored]:
    """The blocks of an event that are not known: its last ones, because with a block, those before it are known."""
    hashes, size = event.block_hashes, event.block_size
    count = sum(block in known for block in hashes)
    if count in (0, len(hashes)):
        return [event] if not count else []
    rest = replace(event, block_hashes=hashes[count:], parent_block_hash=hashes[count - 1])
    return [replace(rest, token_ids=event.token_ids[count * size :])]
