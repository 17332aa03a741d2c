"""BlockIndex: which replica holds which blocks, as its events say. BlockSets: which replicas have which block."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from nanoinfer.cache.block_events import GPU, AllBlocksCleared, BlockStored, EventBatch, Snapshot, check_block_size
from nanoinfer.cluster.policy import check_count

Hashes = Sequence[int]


class BlockSets:
    """`masks`: block hash → the bits of the replicas that have it; blocks that nobody has are not in it.

    A Python integer holds any number of bits, so that one step down a prompt is one look-up and one AND for all replicas.
    """

    def __init__(self) -> None:
        self.masks: dict[int, int] = {}

    def add(self, block: int, bit: int) -> None:
        """The replica of `bit` has it."""
        self.masks[block] = self.masks.get(block, 0) | bit

    def discard(self, block: int, bit: int) -> None:
        """The replica of `bit` does not have it."""
        if left := self.masks.get(block, 0) & ~bit:
            self.masks[block] = left
        else:
            self.masks.pop(block, None)


def matched_blocks(hashes: Hashes, *sets: BlockSets) -> list[tuple[int, int]]:
    """How far each replica matches: `(number of leading blocks, bits of the replicas that match so many or more)`, longest
    match first; replicas without a match are left out. A block counts if any of `sets` has it."""
    found, alive, count, before = [], -1, 0, None
    for masks in zip(*(map(each.masks.get, hashes) for each in sets), strict=True):
        if masks != before:  # most often, the next block lies where this one does
            have = 0
            for mask in masks:
                have |= mask or 0
            still = alive & have
            if count and still != alive:
                found.append((count, alive))
            alive, before = still, masks
            if not alive:
                break
        count += 1
    if alive and count:
        found.append((count, alive))
    return found[::-1]


@dataclass(slots=True)
class Held:
    """What one replica holds, by medium. `next_seq`: the number of the batch that comes next, of the feed `source`."""

    bit: int
    blocks: dict[str, set[int]] = field(default_factory=dict)
    next_seq: int = 0
    source: str | None = None


class BlockIndex:
    """Follows the batches of all replicas. Each replica has a bit of its own, which the caller chooses.

    - A batch that was here before changes nothing. One that comes too early is refused: those between may be lost, so the
      replica must send a snapshot. Until then its blocks stay as they were known.
    - A replica that has started again has a feed of another `source`: what it had before is forgotten.
    - `sets`: what replicas have on their devices; `below`: in host memory, files, or another medium.
    - Blocks whose parents are unknown are kept; they count as soon as the parents are there.
    - At most `max_blocks` blocks per replica and medium are kept. Those beyond match nothing; `left_out` counts them.
    """

    def __init__(self, block_size: int = 16, max_blocks: int = 1 << 20) -> None:
        check_block_size(block_size)
        check_count("max_blocks", max_blocks, least=1)
        self.block_size, self.max_blocks, self.left_out = block_size, max_blocks, 0
        self.sets, self.below = BlockSets(), BlockSets()
        self._held: dict[str, Held] = {}

    def add(self, replica: str, bit: int) -> None:
        """A replica that holds nothing yet, and whose first batch has number 0."""
        self._held[replica] = Held(bit)

    def remove(self, replica: str) -> None:
        """Forget a replica and all its blocks."""
        self._forget(self._held.pop(replica))

    def num_blocks(self, replica: str, medium: str = GPU) -> int:
        """How many blocks the replica is known to hold there."""
        return len(self._held[replica].blocks.get(medium, ()))

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
                self._store(held, event)
            elif isinstance(event, AllBlocksCleared):
                self._remove(held, GPU, list(held.blocks.get(GPU, ())))
            else:
                self._remove(held, event.medium, event.block_hashes)
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
            self._store(held, event)

    def _store(self, held: Held, event: BlockStored) -> None:
        blocks = held.blocks.setdefault(event.medium, set())
        sets = self.sets if event.medium == GPU else self.below
        for block in event.block_hashes:
            if len(blocks) >= self.max_blocks and block not in blocks:
                self.left_out += 1
            else:
                blocks.add(block)
                sets.add(block, held.bit)

    def _remove(self, held: Held, medium: str, hashes: list[int]) -> None:
        blocks, is_below = held.blocks.get(medium, set()), medium != GPU
        sets = self.below if is_below else self.sets
        others = [each for name, each in held.blocks.items() if is_below and name not in (medium, GPU)]
        for block in hashes:
            if block in blocks:
                blocks.remove(block)
                if not any(block in each for each in others):
                    sets.discard(block, held.bit)

    def _forget(self, held: Held) -> None:
        for medium, blocks in held.blocks.items():
            self._remove(held, medium, list(blocks))

    def _check_sizes(self, stored: list[BlockStored]) -> None:
        for event in stored:
            if event.block_size != self.block_size:
                raise ValueError(f"block_size={event.block_size}: must be {self.block_size}, as in this index")
