"""HostMemory: K/V of tokens in host memory, in the bytes in which the pool holds it."""

from collections.abc import Sequence

import numpy as np
import torch


class HostMemory:
    """`data`: uint8, `size` times `token_bytes`: what the first of `buffers` holds for each slot, then what the second one
    holds, and so on, so that neighbours in a buffer are copied at once.

    `buffers`: tensors of any type, `[N, ...]` each, contiguous, of any device: all that a slot of the pool has. `layout`
    says in words what that is. Copies are exact. Elsewhere, K/V is in rows, uint8 `[k, token_bytes]`: what the buffers hold
    for one slot, side by side. Slots are best used from the lowest on: the operating system provides memory when it is
    first written.
    """

    def __init__(self, buffers: Sequence[torch.Tensor], size: int):
        self._buffers = [buffer.view(len(buffer), -1).view(torch.uint8) for buffer in buffers]
        self.layout = "; ".join(f"{buffer.dtype} {list(buffer.shape[1:])}" for buffer in buffers)
        ends = np.cumsum([buffer.shape[1] for buffer in self._buffers]).tolist()
        self._columns = [slice(end - buffer.shape[1], end) for buffer, end in zip(self._buffers, ends, strict=True)]
        self.token_bytes: int = ends[-1]
        self.data = np.zeros(size * self.token_bytes, np.uint8)
        self._parts = [self.data[size * c.start : size * c.stop].reshape(size, c.stop - c.start) for c in self._columns]

    def read_pool(self, pool_slots: np.ndarray) -> np.ndarray:
        """Rows of what the pool holds in `pool_slots`, integers `[k]`."""
        return np.concatenate([_read(buffer, _as_slice(pool_slots)) for buffer in self._buffers], axis=1)

    def write_pool(self, rows: np.ndarray, pool_slots: np.ndarray) -> None:
        """Copy rows to `pool_slots` of a pool of the same layout, integers `[k]`."""
        for buffer, columns in zip(self._buffers, self._columns, strict=True):
            _write(buffer, _as_slice(pool_slots), rows[:, columns])

    def read(self, slots: np.ndarray) -> np.ndarray:
        """Rows of what is in `slots`, integers `[k]`."""
        return np.concatenate([part[_as_slice(slots)] for part in self._parts], axis=1)

    def put(self, rows: np.ndarray, slots: np.ndarray) -> None:
        """Copy rows to `slots`, integers `[k]`."""
        for part, columns in zip(self._parts, self._columns, strict=True):
            part[_as_slice(slots)] = rows[:, columns]

    def store(self, pool_slots: np.ndarray, slots: np.ndarray) -> None:
        """Copy what the pool holds in `pool_slots` to `slots`, integers `[k]` each."""
        of_pool, here = _as_slice(pool_slots), _as_slice(slots)
        for buffer, part in zip(self._buffers, self._parts, strict=True):
            part[here] = _read(buffer, of_pool)

    def load(self, slots: np.ndarray, pool_slots: np.ndarray) -> None:
        """Copy what is in `slots` to `pool_slots` of the pool, integers `[k]` each."""
        of_pool, here = _as_slice(pool_slots), _as_slice(slots)
        for buffer, part in zip(self._buffers, self._parts, strict=True):
            _write(buffer, of_pool, part[here])


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
