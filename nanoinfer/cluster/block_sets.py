"""BlockSets: which replicas have which block, as one integer per block with a bit per replica."""

from collections.abc import Sequence

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


def exactly(matched: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """What `matched_blocks` found, with the bits of the replicas that match so many blocks and not more; 0 included."""
    found, longer = [], 0
    for blocks, bits in matched:
        found.append((blocks, bits & ~longer))
        longer = bits
    return [*found, (0, ~longer)]


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
