"""RunCache: an LRU of blocks, kept as runs: all blocks of a segment, in one place of its tree, are one entry."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

Key = int  # a segment with all before it (segments.chain)


class RunCache:
    """At most `capacity` tokens of prefixes, in blocks of `block_size`. The least recently used blocks go first.

    What is used is used from its last run to its first, so that a run is never older than what follows it, and blocks
    leave from the ends of prefixes, as leaves leave the radix tree. Locked runs stay: running requests need them.
    `on_change(key, is_whole)` is told when all of a run is held, or no longer all of it.
    """

    def __init__(self, capacity: int, block_size: int = 16, on_change: Callable[[Key, bool], object] | None = None):
        if block_size < 1 or capacity < block_size:
            raise ValueError(f"capacity={capacity}, block_size={block_size}: must be at least 1 token and one block")
        self.capacity, self.block_size, self._on_change = capacity, block_size, on_change
        self.held_tokens = 0
        self._runs: OrderedDict[Key, int] = OrderedDict()  # tokens held of each, the least recently used first
        self._locks: dict[Key, int] = {}
        self.locked_tokens = 0

    def match(self, keys: Sequence[Key], lengths: Sequence[int]) -> int:
        """How many leading tokens of these segments are held, in whole blocks."""
        total = 0
        for key, length in zip(keys, lengths, strict=True):
            held = self._runs.get(key, 0)
            total += held
            if held < length:
                break
        return total - total % self.block_size

    def take(self, keys: Sequence[Key], lengths: Sequence[int]) -> bool:
        """Hold all of these segments, lock them and mark them as used. False, with nothing changed, if there is no room
        besides what is locked."""
        if self.locked_tokens + self._unlocked(keys, lengths) > self.capacity:
            return False
        for key, length in zip(reversed(keys), reversed(lengths), strict=True):
            held = self._runs.get(key, 0)
            if key not in self._locks:
                self.locked_tokens += length
            elif held < length:
                self.locked_tokens += length - held
            self._locks[key] = self._locks.get(key, 0) + 1
            if held != length:
                self._set(key, length)
                if self._on_change is not None:
                    self._on_change(key, True)
            self._runs.move_to_end(key)
        self._make_room()
        return True

    def release(self, keys: Sequence[Key]) -> None:
        """Undo the lock of one `take`, and mark them as used. KeyError if they are not locked."""
        for key in reversed(keys):
            left = self._locks[key] - 1
            if left:
                self._locks[key] = left
            else:
                del self._locks[key]
                self.locked_tokens -= self._runs[key]
            self._runs.move_to_end(key)

    def check_integrity(self) -> None:
        """RuntimeError unless the counts are what they should be."""
        held, locked = sum(self._runs.values()), sum(self._runs[key] for key in self._locks)
        if (held, locked) != (self.held_tokens, self.locked_tokens) or held > self.capacity:
            raise RuntimeError(
                f"run cache: holds {held}, locked {locked} of {self.capacity} tokens; counted {self.held_tokens}, "
                f"{self.locked_tokens}"
            )

    def _unlocked(self, keys: Sequence[Key], lengths: Sequence[int]) -> int:
        return sum(length for key, length in zip(keys, lengths, strict=True) if key not in self._locks)

    def _make_room(self) -> None:
        while self.held_tokens > self.capacity:
            key, held = next(iter(self._runs.items()))
            if key in self._locks:
                self._runs.move_to_end(key)  # in use, so it is not the oldest
                continue
            missing = self.held_tokens - self.capacity
            blocks = -(-missing // self.block_size) * self.block_size
            self._set(key, max(held - blocks, 0))
            if self._on_change is not None:
                self._on_change(key, False)

    def _set(self, key: Key, tokens: int) -> None:
        self.held_tokens += tokens - self._runs.get(key, 0)
        if tokens:
            self._runs[key] = tokens
        else:
            del self._runs[key]
