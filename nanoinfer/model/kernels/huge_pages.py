"""Memory in pages of 2 MiB, for packed weights and the largest activations. A token reads all weights, and with pages of
4 KiB the processor looks up so many addresses that a virtual machine reads them at two thirds of the speed."""

import mmap
import weakref
from contextlib import suppress

import torch

PAGE = 2 << 20
CHUNK = 32 * PAGE


class HugePages:
    """Hands out tensors that lie one after another in large pieces of memory, for which Linux is asked to use huge pages.

    A piece of memory has at least `piece` bytes, and is returned when none of its tensors is left. Elsewhere than on Linux,
    the pages are ordinary ones.
    """

    def __init__(self, piece: int = CHUNK) -> None:
        self._piece, self._left = piece, torch.empty(0, dtype=torch.uint8)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor`, contiguous, in this memory."""
        size = -(-tensor.nbytes // 64) * 64  # so that each begins with a cache line
        if size > len(self._left):
            self._left = _map(max(size, self._piece))
        taken, self._left = self._left[: tensor.nbytes], self._left[size:]
        return taken.view(tensor.dtype).view(tensor.shape).copy_(tensor)


class ReusedPages:
    """Hands out large tensors in memory that earlier ones have left. Memory that is mapped anew at every call costs a
    page fault for each 4 KiB, which is a tenth of a large product's time.

    It keeps as many pieces of memory as there were tensors at the same time, each as large as the largest it has held.
    """

    def __init__(self) -> None:
        self._free: list[torch.Tensor] = []

    def empty(self, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        """[rows, columns], not filled. When it and its views are gone, the next one may have its memory."""
        size = rows * columns * dtype.itemsize
        try:
            memory = self._free.pop()
        except IndexError:
            memory = torch.empty(0, dtype=torch.uint8)
        if len(memory) < size:
            memory = _map(size)
        holder = memory[:size].numpy()  # lives as long as the tensor's storage
        weakref.finalize(holder, self._free.append, memory).atexit = False
        return torch.from_numpy(holder).view(dtype).view(rows, columns)


def _map(size: int) -> torch.Tensor:
    """Zeros, uint8 [at least `size`], beginning with a page. Memory is used only where something is written."""
    memory = mmap.mmap(-1, -(-size // PAGE) * PAGE + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system without huge pages: ordinary ones do
            memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    return whole[-whole.data_ptr() % PAGE :]
