"""BlockFeed: the events of one tree, and of tiers below it, as numbered batches, and a snapshot for who missed some."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from uuid import uuid4

from nanoinfer.cache.block_events import BlockEvent, BlockStored, EventBatch, Snapshot
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.cache.tiers.tier_blocks import TierBlocks
from nanoinfer.cache.tree_blocks import TreeBlocks

Visit = Callable[[], AbstractContextManager[object]]
Below = Callable[[int, Callable[[], object]], Sequence[TierBlocks]]


class BlockFeed:
    """What the tree of one replica holds, for those who route to it. Each of them knows the number of its next batch.

        batches = feed.since(7)         # [EventBatch(7, ...), EventBatch(8, ...)], [] if there is nothing new
        if batches is None:             # those are gone
            snapshot = feed.snapshot()  # everything; go on with feed.since(snapshot.seq)

    `visit`: entered to look, and `soon(cut)`: called when something has changed, so that `cut` is called between two steps
    (see `Engine.block_feed`). Without `soon`, call `cut` after each step. The newest batches are kept, as many as have
    `keep_blocks` blocks together. What the tree holds at first is in batch 0. ValueError if it reports to another one.
    `below(event_block_size, changed)`: what tiers below the tree hold (`HostTier.event_sinks`), which call `changed`.
    `listeners`: called, in the thread of the step or visit, when there is a new batch; they must be quick and not raise.
    """

    def __init__(
        self,
        tree: RadixCache,
        event_block_size: int = 16,
        soon: Callable[[Callable[[], object]], object] | None = None,
        visit: Visit = nullcontext,
        keep_blocks: int = 8192,
        clock: Callable[[], float] = time.time,
        source: str | None = None,
        below: Below = lambda size, changed: (),
    ):
        if any(isinstance(observer, TreeBlocks) for observer in tree.observers):
            raise ValueError("tree: reports its blocks to another listener already")
        self.event_block_size, self.keep_blocks = event_block_size, keep_blocks
        self.source = uuid4().hex if source is None else source
        self._soon, self._visit, self._clock = soon, visit, clock
        self._events: list[BlockEvent] = []  # of the current step
        self._batches: deque[EventBatch] = deque()
        self._kept = 0  # how many blocks they have
        self._next = 0
        self._tree, self._below = tree, tuple[TierBlocks, ...]()
        self.listeners: list[Callable[[], object]] = []
        self._blocks = TreeBlocks(tree.nodes, self._note, event_block_size)
        self._below = tuple(below(event_block_size, self._changed))
        tree.observers.add(self._blocks)

    def cut(self) -> None:
        """The current step is over: its events become a batch, if there are any."""
        for tier in self._below:
            self._events += tier.take()
        if not self._events:
            return
        batch = EventBatch(self._next, self._clock(), self._events, self.source)
        self._next, self._events = self._next + 1, []
        self._batches.append(batch)
        self._kept += _size(batch)
        while self._kept > self.keep_blocks and len(self._batches) > 1:
            self._kept -= _size(self._batches.popleft())
        for notify in tuple(self.listeners):
            notify()

    def since(self, seq: int) -> list[EventBatch] | None:
        """The batches from number `seq` on, in order. None if some of them are not kept any more, or are yet to come: ask
        for a snapshot. Any thread may ask, and waits for the current step to end."""
        with self._visit():
            self._check_listening()
            self.cut()
            first = self._next - len(self._batches)
            if not first <= seq <= self._next:
                return None
            return list(self._batches)[seq - first :]

    def snapshot(self) -> Snapshot:
        """All blocks that the tree and other media hold now, and the number of the next batch. It visits the whole tree.
        Any thread may ask, and waits for the current step to end."""
        with self._visit():
            self._check_listening()
            self.cut()
            below = [block for tier in self._below for block in tier.stored()]
            return Snapshot(self._next, [*self._blocks.stored(), *below], self.source)

    def _check_listening(self) -> None:
        """RuntimeError if the tree does not report to this feed any more: it has raised once, and the log says what."""
        if self._blocks not in self._tree.observers:
            raise RuntimeError("this feed is incomplete: it has failed to note an operation of the tree (see the log)")

    def _note(self, events: list[BlockEvent]) -> None:
        self._events += events
        self._changed()

    def _changed(self) -> None:
        if self._soon is not None:
            self._soon(self.cut)


def _size(batch: EventBatch) -> int:
    """How many blocks a batch has; those that are removed cost less, but not nothing."""
    return sum(len(event.block_hashes) for event in batch.events if isinstance(event, BlockStored)) + 1
