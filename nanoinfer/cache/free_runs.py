"""FreeRuns: which of `size` units are free, as maximal runs that can be found by position and by length."""


class FreeRuns:
    """The free units among `0..size-1`, kept as maximal runs `[start, end)`.

    Two questions must be cheap however large and however fragmented the pool is: which free run comes first, and which
    is the first of at least n units. A max-tree answers both: leaf `s` holds the length of the run that starts at `s`
    (0 where none starts), an inner node holds the larger of its two children. Walking down from the root, left child
    first, finds the leftmost run that is long enough in log2(size) steps.

    `_start_by_end` is the boundary tag that lets a unit coming back find the run on its left, to merge with it.
    """

    def __init__(self, size: int):
        self.size = size
        self._leaves = 1 << max(size - 1, 1).bit_length()
        self._longest = [0] * (2 * self._leaves)
        self._start_by_end: dict[int, int] = {}
        self._put(0, size)

    def first(self, length: int) -> int | None:
        """Start of the leftmost run of at least `length` >= 1 units, or None."""
        longest, node = self._longest, 1
        if longest[1] < length:
            return None
        while node < self._leaves:
            node *= 2
            if longest[node] < length:
                node += 1
        return node - self._leaves

    def take(self, start: int, length: int) -> int:
        """Take at most `length` units off the front of the run that starts at `start`; returns the end of what it took."""
        end = start + self._cut(start)
        taken_to = min(start + length, end)
        if taken_to < end:
            self._put(taken_to, end)
        return taken_to

    def give(self, start: int, end: int) -> None:
        """Give `[start, end)` back, merging it with the free runs on both sides. The caller knows that it was taken."""
        left = self._start_by_end.get(start)
        if left is not None:
            self._cut(left)
            start = left
        if end < self.size and self._longest[self._leaves + end]:
            end += self._cut(end)
        self._put(start, end)

    def runs(self) -> list[tuple[int, int]]:
        """Every free run `(start, end)` in order. For checks and pictures: costs the number of runs, sorted."""
        return sorted((start, end) for end, start in self._start_by_end.items())

    def _put(self, start: int, end: int) -> None:
        self._start_by_end[end] = start
        self._set_leaf(start, end - start)

    def _cut(self, start: int) -> int:
        """Forget the run that starts at `start`; returns its length."""
        length = self._longest[self._leaves + start]
        del self._start_by_end[start + length]
        self._set_leaf(start, 0)
        return length

    def _set_leaf(self, start: int, length: int) -> None:
        longest, node = self._longest, self._leaves + start
        longest[node] = length
        while node > 1:
            node >>= 1
            best = max(longest[2 * node], longest[2 * node + 1])
            if longest[node] == best:
                return  # nothing changes further up
            longest[node] = best
