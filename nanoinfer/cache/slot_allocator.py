"""SlotAllocator: hands out numbered slots in whole pages, lowest first. The free list of both memory pools."""

import operator

import numpy as np

from nanoinfer.cache.free_runs import FreeRuns
from nanoinfer.cache.indices import Indices, as_int_array, consecutive_runs


class SlotAllocator:
    """Slots `0..size-1`, given out and taken back in aligned pages of `page_size`; costs follow the slots asked for.

    Host memory only (numpy): it knows nothing of tensors, layers or requests. `name` appears in error messages.
    """

    def __init__(self, size: int, page_size: int = 1, name: str = "slot"):
        if size < 1:
            raise ValueError(f"size={size}: must be at least 1")
        if page_size < 1 or size % page_size:
            raise ValueError(f"page_size={page_size}: must be at least 1 and divide size={size}")
        self.size, self.page_size, self.name = size, page_size, name
        self._pages = FreeRuns(size // page_size)
        self._is_free = np.ones(size, dtype=bool)
        self._available = size

    def available_size(self) -> int:
        """Free slots."""
        return self._available

    def alloc(self, need_size: int) -> np.ndarray | None:
        """`need_size` slots, lowest free first, int32 `[need_size]`; None when there are not enough (all or nothing).

        Raises ValueError when `need_size` is no integer, negative or no whole number of pages.
        """
        need_size = self._checked_need(need_size)
        if need_size > self._available:
            return None
        runs, left = [], need_size // self.page_size
        while left:
            start = self._pages.first(1)
            assert start is not None
            end = self._pages.take(start, left)
            runs.append((start, end))
            left -= end - start
        return self._claim(runs)

    def alloc_contiguous(self, need_size: int) -> np.ndarray | None:
        """`need_size` neighbouring slots, int32: the first run that fits, wherever it is; None when none does.

        Raises ValueError as `alloc` does.
        """
        need_size = self._checked_need(need_size)
        if need_size == 0:
            return self._claim([])
        pages = need_size // self.page_size
        start = self._pages.first(pages)
        return None if start is None else self._claim([(start, self._pages.take(start, pages))])

    def free(self, slots: Indices) -> None:
        """Take `slots` back, in any order. ValueError (naming the first offender, nothing freed) when one is out of
        range, already free, given twice, or not accompanied by the rest of its page."""
        array = as_int_array(slots, f"{self.name}s")
        self._reject(array[(array < 0) | (array >= self.size)], f"outside 0..{self.size - 1}")
        self._reject(array[self._is_free[array]], "already free")
        ordered = np.sort(array)
        self._reject(ordered[1:][ordered[1:] == ordered[:-1]], "given twice")
        for start, end in consecutive_runs(ordered):
            self._reject([start] if start % self.page_size else [], f"not the start of a page of {self.page_size}")
            self._reject([end - 1] if end % self.page_size else [], f"not the end of a page of {self.page_size}")
        for start, end in consecutive_runs(ordered):
            self._pages.give(start // self.page_size, end // self.page_size)
        self._is_free[ordered] = True
        self._available += ordered.size

    def free_slots(self) -> np.ndarray:
        """Every free slot, ascending, int64. Costs the pool's size: for checks and pictures."""
        return np.flatnonzero(self._is_free)

    def check_integrity(self) -> None:
        """RuntimeError unless the count, the bitmap and the runs tell the same story. Costs the pool's size."""
        free = self.free_slots()
        pages = [(start // self.page_size, end // self.page_size) for start, end in consecutive_runs(free)]
        if self._available != free.size or pages != self._pages.runs():
            raise RuntimeError(
                f"{self.name} free list: count {self._available}, bitmap {free.size}, runs {self._pages.runs()}"
            )

    def _claim(self, page_runs: list[tuple[int, int]]) -> np.ndarray:
        size = self.page_size
        parts = [np.arange(start * size, end * size, dtype=np.int32) for start, end in page_runs]
        slots = np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)
        self._is_free[slots] = False
        self._available -= slots.size
        return slots

    def _checked_need(self, need_size: int) -> int:
        """As a plain int: a tensor or a numpy integer is as good, a float is not, and FreeRuns keeps what it is given."""
        try:
            need_size = operator.index(need_size)
        except TypeError:
            raise ValueError(f"need_size={need_size!r}: must be an integer") from None
        if need_size < 0:
            raise ValueError(f"need_size={need_size}: must not be negative")
        if need_size % self.page_size:
            raise ValueError(f"need_size={need_size}: must be a multiple of page_size={self.page_size}")
        return need_size

    def _reject(self, offenders: np.ndarray | list[int], why: str) -> None:
        if len(offenders):
            raise ValueError(f"{self.name} {int(offenders[0])}: {why}")
