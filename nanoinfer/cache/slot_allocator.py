"""SlotAllocator: hands out numbered slots in whole pages, lowest first. Both memory pools use it as their free list."""

import numpy as np

from nanoinfer.cache.checks import first_wrong
from nanoinfer.cache.indices import Indices, as_int_array, checked_size

TAKEN, FREE = b"\0", b"\1"  # how a page is marked
BLOCK = 4096  # so many pages share a block mark, which is TAKEN when none of them is free
WINDOW = 1024  # a search looks at so many pages beyond those it expects to need


class SlotAllocator:
    """Slots `0..size-1`, allocated and freed in aligned pages of `page_size`, at a cost that doesn't grow with the pool.

    One byte per page says whether the page is free. `_marks` is a `bytearray`, because nothing finds a byte faster than
    its `find`. `_is_free` is the same memory as a numpy mask, to change many pages at once. The block marks let a search
    start at the lowest block with a free page, so a large pool costs no more than a small one.

    It is in host memory and knows nothing of tensors, layers or requests. `name` appears in error messages.
    """

    def __init__(self, size: int, page_size: int = 1, name: str = "slot"):
        if size < 1:
            raise ValueError(f"size={size}: must be at least 1")
        if page_size < 1 or size % page_size:
            raise ValueError(f"page_size={page_size}: must be at least 1 and divide size={size}")
        self.size, self.page_size, self.name = size, page_size, name
        self._marks = bytearray(FREE) * (size // page_size)
        self._is_free = np.frombuffer(self._marks, dtype=bool)
        self._in_tree = np.zeros(size // page_size, dtype=bool)  # which of the taken pages a radix tree owns
        self._block_marks = bytearray(FREE) * -(-len(self._marks) // BLOCK)
        self._block_is_free = np.frombuffer(self._block_marks, dtype=bool)
        self._available = size

    def clear(self) -> None:
        """Take all slots back, whoever has them."""
        self._is_free[:], self._in_tree[:], self._block_is_free[:] = True, False, True
        self._available = self.size

    def available_size(self) -> int:
        """How many slots are free."""
        return self._available

    def alloc(self, need_size: int) -> np.ndarray | None:
        """Take `need_size` slots, lowest free first: int32 `[need_size]`, or None when there are not enough.

        Raises ValueError when `need_size` is not an integer, is negative, or is not a whole number of pages.
        """
        need_size = checked_size(need_size, self.page_size)
        if need_size > self._available:
            return None
        if need_size == 0:
            return np.empty(0, dtype=np.int32)
        start, count = self._lowest_free_page(), need_size // self.page_size
        if self._marks.find(TAKEN, start, start + count) < 0:
            return self._take_run(start, count)
        spread = count * self.size // self._available  # how many pages to search if the free ones are spread evenly
        pages = self._take_scattered(start, count, spread + WINDOW)
        self._available -= need_size
        return self._slots(pages).astype(np.int32)

    def alloc_contiguous(self, need_size: int) -> np.ndarray | None:
        """Take `need_size` neighbouring slots, int32, from the first run that is long enough; None when there is none.

        May search the whole pool. Raises ValueError as `alloc` does, and when `need_size` is 0.
        """
        count = checked_size(need_size, self.page_size) // self.page_size
        if not count:
            raise ValueError("need_size=0: must be at least 1")
        start = self._marks.find(FREE * count) if count <= len(self._marks) else -1
        return None if start < 0 else self._take_run(start, count)

    def free(self, slots: Indices) -> None:
        """Take `slots` back, in any order. ValueError when one is out of range, already free, given twice, or given
        without the rest of its page. It names the first such slot, and nothing is freed."""
        pages = self._freeable_pages(slots)
        if not pages.size:
            return
        self._is_free[pages], self._in_tree[pages] = True, False
        first, last = pages.item(0) // BLOCK, pages.item(-1) // BLOCK
        if first == last:
            self._block_marks[first] = True
        else:
            self._block_is_free[pages // BLOCK] = True
        self._available += pages.size * self.page_size

    def hand_to_tree(self, indices: np.ndarray, start: int, end: int) -> None:
        """Note that a radix tree owns `indices[start:end]` (int64, each page in order) from now on, until they are freed.

        ValueError when `free` would refuse a slot, when a tree owns one already, or when one is also among the other
        `indices`, since their owner may free it. It names the first such slot and its index, and nothing is changed.
        """
        slots, others = indices[start:end], np.delete(indices, slice(start, end))
        pages = self._freeable_pages(slots, start)
        in_place = self.page_size == 1 or np.array_equal(slots, self._slots(slots[:: self.page_size] // self.page_size))
        if not in_place or np.count_nonzero(self._in_tree[pages]) or np.isin(others, slots).any():
            self._refuse(slots, start, others)
        self._in_tree[pages] = True

    def free_slots(self) -> np.ndarray:
        """Every free slot, ascending, int64. It looks at the whole pool: for checks and pictures."""
        return self._slots(np.flatnonzero(self._is_free))

    def check_integrity(self) -> None:
        """RuntimeError unless the count, the page marks and the block marks agree. It looks at the whole pool."""
        free = self.free_slots()
        skipped = free[~self._block_is_free[free // (self.page_size * BLOCK)]]
        if self._available != free.size or skipped.size:
            raise RuntimeError(f"{self.name} free list: counted {self._available}, marked {free.size}, lost {skipped}")

    def _lowest_free_page(self) -> int:
        """The lowest free page; there must be one. Marks blocks that it finds full, so that later searches skip them."""
        block = self._block_marks.find(FREE)
        while (page := self._marks.find(FREE, block * BLOCK, (block + 1) * BLOCK)) < 0:
            self._block_marks[block] = False
            block = self._block_marks.find(FREE)
        return page

    def _take_run(self, start: int, count: int) -> np.ndarray:
        """Take `count` free pages from `start` on, and return their slots. Every one of them must be free."""
        self._is_free[start : start + count] = False
        self._available -= count * self.page_size
        return np.arange(start * self.page_size, (start + count) * self.page_size, dtype=np.int32)

    def _take_scattered(self, start: int, count: int, width: int) -> np.ndarray:
        """Take the lowest `count` free pages: those before `start + width`, and if there are too few, pages after that."""
        base = start - start % BLOCK  # nothing before `start` is free; a base of 0 saves an addition below
        pages = self._is_free[base : start + width].nonzero()[0][:count]
        if base:
            pages += base
        self._is_free[pages] = False
        if pages.size == count:
            return pages
        rest = self._take_scattered(self._lowest_free_page(), count - pages.size, 2 * width)
        return np.concatenate((pages, rest))

    def _slots(self, pages: np.ndarray) -> np.ndarray:
        return pages if self.page_size == 1 else (pages[:, None] * self.page_size + np.arange(self.page_size)).ravel()

    def _freeable_pages(self, slots: Indices, start: int | None = None) -> np.ndarray:
        """The pages that `slots` fill, ascending, int64. Raises ValueError for everything that `free` refuses.

        `start`: the index of the first slot in the list that `hand_to_tree` was given, for the message.
        """
        array = as_int_array(slots, f"{self.name}s")
        ordered = array if (array[1:] > array[:-1]).all() else np.sort(array)  # sorting costs more than looking
        pages = ordered if self.page_size == 1 else ordered[:: self.page_size] // self.page_size
        outside = array.size and (ordered.item(0) < 0 or ordered.item(-1) >= self.size)
        whole = self.page_size == 1 or np.array_equal(self._slots(pages), ordered)
        twice = np.count_nonzero(pages[1:] == pages[:-1])
        if outside or twice or not whole or np.count_nonzero(self._is_free[pages]):
            self._refuse(array, start)
        return pages

    def _refuse(self, array: np.ndarray, start: int | None, others: Indices = ()) -> None:
        """Raise a ValueError that names the first wrong slot and says why it is wrong. It looks at the whole pool."""
        wrong = first_wrong(array, others, self._is_free, self._in_tree, self.page_size)
        assert wrong is not None
        index, slot, why = wrong
        raise ValueError(f"{'' if start is None else f'indices[{start + index}]: '}{self.name} {slot}: {why}")
