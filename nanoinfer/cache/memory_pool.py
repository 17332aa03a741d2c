"""The two memory pools: ReqToTokenPool (one row per running request) and TokenToKVPool (one slot per token).

    req_to_token[row, position] = slot          key_buffer[slot], value_buffer[slot] = K and V of that token

Where a request's K/V lies is therefore two look-ups away, and two requests share K/V by naming the same slot.
"""

from typing import cast

import numpy as np
import torch

from nanoinfer.cache.indices import Indices
from nanoinfer.cache.kv_storage import KVStorage, PlainKVStorage, check_kv_storage, kv_storage_kind
from nanoinfer.cache.slot_allocator import SlotAllocator


class ReqToTokenPool:
    """One row per running request: position in the sequence → slot in the TokenToKVPool.

    `req_to_token`: int32 `[size, max_context_len]`. What lies right of a request's length is left over from earlier
    requests and means nothing.
    """

    def __init__(self, size: int, max_context_len: int, device: str | torch.device = "cpu"):
        if max_context_len < 1:
            raise ValueError(f"max_context_len={max_context_len}: must be at least 1")
        self._rows = SlotAllocator(size, name="row")
        self.size, self.max_context_len = size, max_context_len
        self.req_to_token = torch.zeros((size, max_context_len), dtype=torch.int32, device=device)

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """`need_size` free rows, lowest first, int32 `[need_size]` on the host; None when there are not enough.

        Raises ValueError when `need_size` is no integer or negative.
        """
        rows = self._rows.alloc(need_size)
        return None if rows is None else torch.from_numpy(rows)

    def free(self, indices: Indices) -> None:
        """Take rows back. ValueError naming the row when one is out of range, already free or given twice."""
        self._rows.free(indices)

    def available_size(self) -> int:
        """Free rows."""
        return self._rows.available_size()

    def check_integrity(self) -> None:
        """RuntimeError when the free list contradicts itself."""
        self._rows.check_integrity()


class TokenToKVPool:
    """`N = size` token slots, each with K and V of every layer: `head_num` heads (Hk) of `head_dim` numbers (D).

    Rows, tree and requests name slots; how K/V lies in them is up to the KVStorage that `kv_cache_dtype` names.
    The plain one has a key and a value buffer `[N, Hk, D]` of `dtype` per layer. With `page_size=P` slots come and go in
    aligned pages of P, and `get_key_buffer(i).view(N // P, P, Hk, D)` is the block layout that paged interfaces expect:
    the same memory, seen in blocks.
    """

    def __init__(
        self,
        size: int,
        dtype: torch.dtype,
        head_num: int,
        head_dim: int,
        layer_num: int,
        device: str | torch.device = "cpu",
        page_size: int = 1,
        kv_cache_dtype: str | None = None,
    ):
        for name, value in (("head_num", head_num), ("head_dim", head_dim), ("layer_num", layer_num)):
            if value < 1:
                raise ValueError(f"{name}={value}: must be at least 1")
        storage = kv_storage_kind(kv_cache_dtype)
        self._slots = SlotAllocator(size, page_size)
        self.size, self.page_size, self.dtype, self.device = size, page_size, dtype, torch.device(device)
        self.kv_storage: KVStorage = storage(size, dtype, head_num, head_dim, layer_num, self.device)
        check_kv_storage(self.kv_storage, size, dtype, head_num, head_dim)

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        """Keys of one layer, `[N, Hk, D]`: the buffer itself, not a copy. ValueError unless the storage is plain."""
        return self._plain_storage().key_buffers[layer_id]

    def get_value_buffer(self, layer_id: int) -> torch.Tensor:
        """Values of one layer, `[N, Hk, D]`: the buffer itself, not a copy. ValueError unless the storage is plain."""
        return self._plain_storage().value_buffers[layer_id]

    def set_kv_buffer(
        self, layer_id: int, slots: torch.Tensor | slice, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Write `keys` and `values` `[T, Hk, D]` into `slots`, an index `[T]` or, where neighbours, a slice."""
        self.kv_storage.write(layer_id, slots, keys, values)

    def read(self, layer_id: int, slots: torch.Tensor | slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer in `slots`, `[*slots.shape, Hk, D]` each, of `dtype`, whatever the storage."""
        return self.kv_storage.read(layer_id, slots)

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """`need_size` free slots, lowest first, int32 `[need_size]` on the host; None when there are not enough.

        Raises ValueError when `need_size` is no integer, negative or no multiple of `page_size`.
        """
        slots = self._slots.alloc(need_size)
        return None if slots is None else torch.from_numpy(slots)

    def alloc_contiguous(self, need_size: int) -> tuple[torch.Tensor, int, int] | None:
        """The first run of `need_size` free neighbours as `(slots, start, end)`, `end` exclusive; None when no run fits.

        Raises ValueError when `need_size` is not a positive multiple of `page_size`.
        """
        slots = self._slots.alloc_contiguous(need_size)
        if slots is None:
            return None
        if not slots.size:
            raise ValueError("need_size=0: must be at least 1")
        return torch.from_numpy(slots), int(slots[0]), int(slots[-1]) + 1

    def free(self, slots: Indices) -> None:
        """Take slots back, in any order; the K/V in them is dead from here on.

        Raises ValueError naming the slot, with nothing freed, when one is out of range, already free, given twice, or
        comes without the rest of its page.
        """
        self._slots.free(slots)

    def hand_to_tree(self, indices: np.ndarray, start: int, end: int) -> None:
        """A radix tree has the slots `indices[start:end]`, int64, from now on, until they are freed.

        Raises ValueError naming the index and the slot, with nothing changed, for what `free` would refuse, when a tree
        has one already, and when one is among the other `indices`, too.
        """
        self._slots.hand_to_tree(indices, start, end)

    def available_size(self) -> int:
        """Free slots."""
        return self._slots.available_size()

    def free_slots(self) -> torch.Tensor:
        """Every free slot, ascending, int64. Costs the pool's size: for checks and pictures."""
        return torch.from_numpy(self._slots.free_slots())

    def check_integrity(self) -> None:
        """RuntimeError when the free list contradicts itself. Costs the pool's size."""
        self._slots.check_integrity()

    def _plain_storage(self) -> PlainKVStorage:
        if not self.kv_storage.has_plain_buffers:
            raise ValueError(f"{type(self.kv_storage).__name__}: this storage of K/V has no plain buffers; use read()")
        return cast(PlainKVStorage, self.kv_storage)
