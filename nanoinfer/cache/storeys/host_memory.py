"""HostMemory: K/V of tokens in host memory, in the bytes in which the pool holds it."""

import ctypes
import mmap
import sys
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

AHEAD = 64 * 2**20  # bytes
PIECE = 2**20  # bytes: while the system provides them, the process cannot map other memory
POPULATE_WRITE = 23  # MADV_POPULATE_WRITE: Linux 5.14 and later


class HostMemory:
    """`data`: uint8 `[size / block_size, block_size * token_bytes]`. A line is a block of slots: what the first of
    `buffers` holds for all of them, then what the second one holds, and so on. So whole blocks are copied in long pieces.

    `buffers`: tensors of any type, `[N, ...]` each, contiguous, of any device: all that a slot of the pool has. `layout`
    says in words what that is. Copies are exact. Wherever else K/V goes, it goes in rows, uint8 `[k, token_bytes]`: what
    the buffers hold for one slot, side by side. `size` is a multiple of `block_size`. Slots are best used from the lowest
    on: the operating system provides memory for those up to the highest that has been used, and a little more (see
    MemoryAhead).
    """

    def __init__(self, buffers: Sequence[torch.Tensor], size: int, block_size: int = 1):
        self._buffers = [buffer.view(len(buffer), -1).view(torch.uint8) for buffer in buffers]
        self.layout = "; ".join(f"{buffer.dtype} {list(buffer.shape[1:])}" for buffer in buffers)
        ends = np.cumsum([buffer.shape[1] for buffer in self._buffers]).tolist()
        self._columns = [slice(end - buffer.shape[1], end) for buffer, end in zip(self._buffers, ends, strict=True)]
        self.token_bytes: int = ends[-1]
        self._block_size = block_size
        self.data = np.zeros((size // block_size, block_size * self.token_bytes), np.uint8)
        self._parts = [  # of each buffer: [size / block_size, block_size, its bytes], in the same memory
            self.data[:, block_size * each.start : block_size * each.stop].reshape(
                -1, block_size, each.stop - each.start
            )
            for each in self._columns
        ]
        self._ahead = MemoryAhead(self.data)

    def read_pool(self, pool_slots: np.ndarray) -> np.ndarray:
        """Rows of what the pool holds in `pool_slots`, integers `[k]`."""
        of_pool = _as_slice(pool_slots)
        return self._rows(len(pool_slots), (_read(buffer, of_pool) for buffer in self._buffers))

    def read(self, slots: np.ndarray) -> np.ndarray:
        """Rows of what is in `slots`, integers `[k]`."""
        where, _ = self._where(slots)
        return self._rows(len(slots), (part[where].reshape(len(slots), part.shape[2]) for part in self._parts))

    def store(self, pool_slots: np.ndarray, slots: np.ndarray) -> None:
        """Copy what the pool holds in `pool_slots` to `slots`, integers `[k]` each."""
        of_pool = _as_slice(pool_slots)
        self._store((_read(buffer, of_pool) for buffer in self._buffers), slots)

    def put(self, rows: np.ndarray, slots: np.ndarray) -> None:
        """Copy rows to `slots`, integers `[k]`."""
        self._store((rows[:, columns] for columns in self._columns), slots)

    def write_pool(self, rows: np.ndarray, pool_slots: np.ndarray) -> None:
        """Copy rows to `pool_slots` of a pool of the same layout, integers `[k]`."""
        of_pool = _as_slice(pool_slots)
        for buffer, columns in zip(self._buffers, self._columns, strict=True):
            _write(buffer, of_pool, rows[:, columns])

    def load(self, slots: np.ndarray, pool_slots: np.ndarray) -> None:
        """Copy what is in `slots` to `pool_slots` of the pool, integers `[k]` each."""
        (where, _), of_pool = self._where(slots), _as_slice(pool_slots)
        for buffer, part in zip(self._buffers, self._parts, strict=True):
            _write(buffer, of_pool, part[where].reshape(len(slots), part.shape[2]))

    def _store(self, parts: Iterable[np.ndarray], slots: np.ndarray) -> None:
        where, shape = self._where(slots)
        for part, given in zip(self._parts, parts, strict=True):
            part[where] = given.reshape(*shape, part.shape[2])
        if len(slots):
            lines = int(slots.max()) // self._block_size + 1
            self._ahead.used(lines * self.data.shape[1])

    def _where(self, slots: np.ndarray) -> tuple[Any, tuple[int, ...]]:
        """What to index `_parts` with to get these slots, and the shape that they have then: whole blocks block by block,
        which is faster, and others one by one."""
        size = self._block_size
        lines = slots[::size] // size
        if np.array_equal((lines[:, None] * size + np.arange(size)).ravel(), slots):
            return _as_slice(lines), (len(lines), size)
        return (slots // size, slots % size), (len(slots),)

    def _rows(self, count: int, parts: Iterable[np.ndarray]) -> np.ndarray:
        rows = np.empty((count, self.token_bytes), np.uint8)
        for columns, part in zip(self._columns, parts, strict=True):
            rows[:, columns] = part
        return rows


def _read(buffer: torch.Tensor, slots: np.ndarray | slice) -> np.ndarray:
    """The bytes of a buffer `[N, bytes]` in these slots, on the host: of neighbours without a copy, if it is there."""
    if buffer.device.type != "cpu":
        return buffer[_on(buffer, slots)].cpu().numpy()
    return buffer.numpy()[slots] if isinstance(slots, slice) else buffer.numpy().take(slots, axis=0)


def _write(buffer: torch.Tensor, slots: np.ndarray | slice, part: np.ndarray) -> None:
    if buffer.device.type == "cpu":
        buffer.numpy()[slots] = part
    else:
        buffer[_on(buffer, slots)] = torch.from_numpy(np.array(part)).to(buffer.device)


def _on(buffer: torch.Tensor, slots: np.ndarray | slice) -> torch.Tensor | slice:
    return slots if isinstance(slots, slice) else torch.from_numpy(slots).long().to(buffer.device)


def _as_slice(slots: np.ndarray) -> np.ndarray | slice:
    """Neighbours in order as a slice, which numpy copies twice as fast; others as they are."""
    if not len(slots) or slots[-1] - slots[0] != len(slots) - 1 or (np.diff(slots) != 1).any():
        return slots
    return slice(int(slots[0]), int(slots[0]) + len(slots))


class MemoryAhead:
    """Has memory of `data` (contiguous, any shape) provided, at most `ahead` bytes more than have been used.

    An array of zeros has no memory until it is written. Then each page costs its first writer what the system needs to
    provide it: on a virtual machine, up to 4 ms per MB. So a thread asks for it before, and ends when there is enough;
    it stops early when `data` is gone. What is in the memory does not change, whoever writes it meanwhile. Where the
    system cannot be asked (before Linux 5.14, and elsewhere), nothing happens here, and the first writer waits.
    """

    def __init__(self, data: np.ndarray, ahead: int = AHEAD):
        self._data, self._ahead = data, ahead
        self._asked = 0 if _provide(0, 0) else data.nbytes  # bytes
        self._thread: threading.Thread | None = None
        self.used(0)

    def used(self, num_bytes: int) -> None:
        """The first `num_bytes` are in use. When less than half of what should be ahead of them is, ask for the rest."""
        end = min(num_bytes + self._ahead, self._data.nbytes)
        if self._asked >= min(num_bytes + self._ahead // 2, end) or (self._thread and self._thread.is_alive()):
            return
        args = (weakref.ref(self._data), max(self._asked, num_bytes), end)
        self._thread = threading.Thread(target=_provide_pieces, args=args, name="nanoinfer-memory", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # Python is exiting, or there are too many threads: the first writer waits
            self._thread = None
        self._asked = end


def _provide_pieces(data: "weakref.ref[np.ndarray]", start: int, end: int) -> None:
    """Have memory of the bytes `start .. end - 1` of `data` provided, until `data` is gone or the system has no more."""
    for at in range(start, end, PIECE):
        array = data()
        if array is None or not _provide(array.ctypes.data + at, min(PIECE, end - at)):
            return
        del array  # nothing here keeps it between two pieces


def _provide(address: int, num_bytes: int) -> bool:
    """Have memory of these bytes provided, but not of a last page that they do not fill. Whether the system does that."""
    first, last = (each // mmap.PAGESIZE * mmap.PAGESIZE for each in (address, address + num_bytes))
    return sys.platform == "linux" and not ctypes.CDLL(None).madvise(
        ctypes.c_void_p(first), ctypes.c_size_t(last - first), POPULATE_WRITE
    )
