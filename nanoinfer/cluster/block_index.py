"""BlockIndex: which replica holds which blocks, as its events say."""

from dataclasses import dataclass, field

from nanoinfer.cache.block_events import AllBlocksCleared, BlockStored, EventBatch, Snapshot, check_block_size
from nanoinfer.cluster.block_sets import BlockSets
from nanoinfer.cluster.policy import check_count


@dataclass(slots=True)
class Held:
    """What one replica holds. `next_seq`: the number of the batch that comes next, of the feed `source`."""

    bit: int
    blocks: set[int] = field(default_factory=set)
    next_seq: int = 0
    source: str | None = None


class BlockIndex:
    """Follows the batches of all replicas. Each replica has a bit of its own, which the caller chooses.

    - A batch that was here before changes nothing. One that comes too early is refused: those between may be lost, so the
      replica must send a snapshot. Until then its blocks stay as they were known.
    - A replica that has started again has a feed of another `source`: what it had before is forgotten.
    - Blocks whose parents are unknown are kept; they count as soon as the parents are there.
    - At most `max_blocks` blocks per replica are kept. Those beyond are counted in `left_out`; they match nothing.
    """

    def __init__(self, block_size: int = 16, max_blocks: int = 1 << 20) -> None:
        check_block_size(block_size)
        check_count("max_blocks", max_blocks, least=1)
        self.block_size, self.max_blocks, self.left_out = block_size, max_blocks, 0
        self.sets = BlockSets()
        self._held: dict[str, Held] = {}

    def add(self, replica: str, bit: int) -> None:
        """A replica that holds nothing yet, and whose first batch has number 0."""
        self._held[replica] = Held(bit)

    def remove(self, replica: str) -> None:
        """Forget a replica and all its blocks."""
        self._forget(self._held.pop(replica))

    def num_blocks(self, replica: str) -> int:
        """How many blocks the replica is known to hold."""
        return len(self._held[replica].blocks)

    def note_events(self, replica: str, batch: EventBatch) -> bool:
        """Do what a batch says. False, with nothing changed but for a new `source`, if batches before it are missing.
        ValueError, with nothing changed, if its blocks have another size."""
        self._check_sizes([event for event in batch.events if isinstance(event, BlockStored)])
        held = self._held[replica]
        if held.source != batch.source:
            if held.source is not None:
                self._forget(held)
            held.source, held.next_seq = batch.source, 0
        if batch.seq < held.next_seq:
            return True
        if batch.seq != held.next_seq:
            return False
        for event in batch.events:
            if isinstance(event, BlockStored):
                self._store(held, event.block_hashes)
            elif isinstance(event, AllBlocksCleared):
                self._forget(held)
            else:
                for block in event.block_hashes:
                    if block in held.blocks:
                        held.blocks.remove(block)
                        self.sets.discard(block, held.bit)
        held.next_seq = batch.seq + 1
        return True

    def note_snapshot(self, replica: str, snapshot: Snapshot) -> None:
        """Replace what is known of a replica, unless more is known already. ValueError, with nothing changed, if its blocks
        have another size."""
        self._check_sizes(snapshot.blocks)
        held = self._held[replica]
        if held.source == snapshot.source and snapshot.seq < held.next_seq:
            return
        self._forget(held)
        held.source, held.next_seq = snapshot.source, snapshot.seq
        for event in snapshot.blocks:
            self._store(held, event.block_hashes)

    def _store(self, held: Held, hashes: list[int]) -> None:
        for block in hashes:
            if len(held.blocks) >= self.max_blocks and block not in held.blocks:
                self.left_out += 1
            else:
                held.blocks.add(block)
                self.sets.add(block, held.bit)

    def _forget(self, held: Held) -> None:
        for block in held.blocks:
            self.sets.discard(block, held.bit)
        held.blocks.clear()

    def _check_sizes(self, stored: list[BlockStored]) -> None:
        for event in stored:
            if event.block_size != self.block_size:
                raise ValueError(f"block_size={event.block_size}: must be {self.block_size}, as in this index")
