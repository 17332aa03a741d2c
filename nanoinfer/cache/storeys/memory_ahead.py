"""MemoryAhead: has the operating system provide memory shortly before it is written for the first time."""

import ctypes
import mmap
import sys
import threading
import weakref

import numpy as np

AHEAD = 64 * 2**20  # bytes
PIECE = 2**20  # bytes: while the system provides them, the process cannot map other memory
POPULATE_WRITE = 23  # MADV_POPULATE_WRITE: Linux 5.14 and later


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
