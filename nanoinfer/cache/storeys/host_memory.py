"""HostMemory: K/V of tokens in host memory, in the bytes in which the pool holds it."""

from collections.abc import Sequence

import numpy as np
import torch

from nanoinfer.cache.storeys.memory_ahead import MemoryAhead


class HostMemory:
    """`data`: uint8 `[size, token_bytes]`; a row is what `buffers` hold for one slot, side by side, in this order, which
    `layout` says in words.

    `buffers`: tensors of any type, `[N, ...]` each, contiguous, of any device: all that a slot of the pool has. Copies are
    exact. Slots are best used from the lowest on: the operating system provides memory for those up to the highest that has
    been used, and a little more (see MemoryAhead).
    """

    def __init__(self, buffers: Sequence[torch.Tensor], size: int):
        self._buffers = [buffer.view(len(buffer), -1).view(torch.uint8) for buffer in buffers]
        self.layout = "; ".join(f"{buffer.dtype} {list(buffer.shape[1:])}" for buffer in buffers)
        ends = np.cumsum([buffer.shape[1] for buffer in self._buffers]).tolist()
        self._columns = [slice(end - buffer.shape[1], end) for buffer, end in zip(self._buffers, ends, strict=True)]
        self.token_bytes: int = ends[-1]
        self.data = np.zeros((size, self.token_bytes), np.uint8)
        self._ahead = MemoryAhead(self.data)

    def read_pool(self, pool_slots: np.ndarray) -> np.ndarray:
        """What the pool holds in `pool_slots`, integers `[k]`: uint8 `[k, token_bytes]`."""
        rows = np.empty((len(pool_slots), self.token_bytes), np.uint8)
        self._gather(pool_slots, rows, slice(None))
        return rows

    def store(self, pool_slots: np.ndarray, slots: np.ndarray) -> None:
        """Copy what the pool holds in `pool_slots` to `slots`, integers `[k]` each."""
        self._gather(pool_slots, self.data, slots)
        self._note(slots)

    def put(self, rows: np.ndarray, slots: np.ndarray) -> None:
        """Copy what `read_pool` returned to `slots`, integers `[k]`."""
        self.data[slots] = rows
        self._note(slots)

    def write_pool(self, rows: np.ndarray, pool_slots: np.ndarray) -> None:
        """Copy what `read_pool` returned to `pool_slots` of a pool of the same layout, integers `[k]`."""
        self._scatter(rows, slice(None), pool_slots)

    def load(self, slots: np.ndarray, pool_slots: np.ndarray) -> None:
        """Copy what is in `slots` to `pool_slots` of the pool, integers `[k]` each."""
        self._scatter(self.data, slots, pool_slots)

    def _note(self, slots: np.ndarray) -> None:
        if len(slots):
            self._ahead.used((int(slots.max()) + 1) * self.token_bytes)

    def _scatter(self, rows: np.ndarray, where: np.ndarray | slice, pool_slots: np.ndarray) -> None:
        where, of_pool = _as_slice(where), _as_slice(pool_slots)
        for buffer, columns in zip(self._buffers, self._columns, strict=True):
            if buffer.device.type == "cpu":
                buffer.numpy()[of_pool] = rows[where, columns]
            else:
                index = torch.from_numpy(pool_slots).long().to(buffer.device)
                buffer.index_copy_(0, index, torch.from_numpy(np.array(rows[where, columns])).to(buffer.device))

    def _gather(self, pool_slots: np.ndarray, rows: np.ndarray, where: np.ndarray | slice) -> None:
        where, of_pool = _as_slice(where), _as_slice(pool_slots)
        for buffer, columns in zip(self._buffers, self._columns, strict=True):
            if buffer.device.type == "cpu":
                rows[where, columns] = buffer.numpy()[of_pool]
            else:
                index = torch.from_numpy(pool_slots).long().to(buffer.device)
                rows[where, columns] = buffer.index_select(0, index).cpu().numpy()


def _as_slice(slots: np.ndarray | slice) -> np.ndarray | slice:
    """Neighbours in order as a slice, which numpy copies twice as fast; others as they are."""
    if (
        isinstance(slots, slice)
        or not len(slots)
        or slots[-1] - slots[0] != len(slots) - 1
        or (np.diff(slots) != 1).any()
    ):
        return slots
    return slice(int(slots[0]), int(slots[0]) + len(slots))
