"""The two memory pools: ReqToTokenPool (one row per running request) and TokenToKVPool (one slot per token).

    req_to_token[row, position] = slot          key_buffer[slot], value_buffer[slot] = K and V of that token

So it takes two look-ups to find a token's K/V, and two requests share K/V by naming the same slot.
"""

from typing import cast

import numpy as np
import torch

from nanoinfer.cache.indices import Indices
from nanoinfer.cache.kv_storage import PlainKVStorage, new_kv_storage
from nanoinfer.cache.slot_allocator import SlotAllocator


class ReqToTokenPool:
    """One row per running request. It maps each position in the sequence to a slot in the TokenToKVPool.

    `req_to_token`: int32 `[size, max_context_len]`. Entries beyond a request's length are left over from earlier
    requests and mean nothing.
    """

    def __init__(self, size: int, max_context_len: int, device: str | torch.device = "cpu"):
        if max_context_len < 1:
            raise ValueError(f"max_context_len={max_context_len}: must be at least 1")
        self._rows = SlotAllocator(size, name="row")
        self.size, self.max_context_len = size, max_context_len
        self.req_to_token = torch.zeros((size, max_context_len), dtype=torch.int32, device=device)

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """Take `need_size` free rows, lowest first: int32 `[need_size]` on the host, or None when there are not enough.

        Raises ValueError when `need_size` is not an integer or is negative.
        """
        rows = self._rows.alloc(need_size)
        return None if rows is None else torch.from_numpy(rows)

    def free(self, indices: Indices) -> None:
        """Take rows back. ValueError naming the row when one is out of range, already free or given twice."""
        self._rows.free(indices)

    def clear(self) -> None:
        """Take all rows back, whoever has them."""
        self._rows.clear()

    def available_size(self) -> int:
        """How many rows are free."""
        return self._rows.available_size()

    def check_integrity(self) -> None:
        """RuntimeError when the free list contradicts itself."""
        self._rows.check_integrity()


class TokenToKVPool:
    """`N = size` token slots. Each holds K and V of one token in every layer: `head_num` heads (Hk) of `head_dim` (D).

    Rows, tree and requests only name slots; the KVStorage that `kv_cache_dtype` names decides how K/V is kept in them.
    The plain one has a key buffer and a value buffer `[N, Hk, D]` of `dtype` per layer. With `page_size=P`, slots are
    allocated and freed in aligned pages of P, and `get_key_buffer(i).view(N // P, P, Hk, D)` is the block layout that
    paged interfaces expect: the same memory, seen in blocks.
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
        self._slots = SlotAllocator(size, page_size)
        self.size, self.page_size, self.dtype, self.device = size, page_size, dtype, torch.device(device)
        self.kv_storage = new_kv_storage(kv_cache_dtype, size, dtype, head_num, head_dim, layer_num, self.device)

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        """The keys of one layer, `[N, Hk, D]`: the buffer itself, not a copy. ValueError unless the storage is plain."""
        return self._plain_storage().key_buffers[layer_id]

    def get_value_buffer(self, layer_id: int) -> torch.Tensor:
        """The values of one layer, `[N, Hk, D]`: the buffer itself, not a copy. ValueError unless the storage is plain."""
        return self._plain_storage().value_buffers[layer_id]

    def set_kv_buffer(
        self, layer_id: int, slots: torch.Tensor | slice, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Write `keys` and `values` `[T, Hk, D]` into `slots`: an index `[T]`, or a slice when they are neighbours."""
        self.kv_storage.write(layer_id, slots, keys, values)

    def read(self, layer_id: int, slots: torch.Tensor | slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of one layer in `slots`: `[*slots.shape, Hk, D]` each, in `dtype`, for any storage."""
        return self.kv_storage.read(layer_id, slots)

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """Take `need_size` free slots, lowest first: int32 `[need_size]` on the host, or None when there are not enough.

        Raises ValueError when `need_size` is not an integer, is negative, or is not a multiple of `page_size`.
        """
        slots = self._slots.alloc(need_size)
        return None if slots is None else torch.from_numpy(slots)

    def alloc_contiguous(self, need_size: int) -> tuple[torch.Tensor, int, int] | None:
        """Take the first run of `need_size` free neighbours: `(slots, start, end)`, `end` exclusive; None when none fits.

        Raises ValueError when `need_size` is not a positive multiple of `page_size`.
        """
        slots = self._slots.alloc_contiguous(need_size)
        if slots is None:
            return None
        return torch.from_numpy(slots), int(slots[0]), int(slots[-1]) + 1

    def free(self, slots: Indices) -> None:
        """Take slots back, in any order. The K/V in them must not be read any more.

        Raises ValueError naming the slot when one is out of range, already free, given twice, or given without the rest
        of its page. Nothing is freed then.
        """
        self._slots.free(slots)

    def clear(self) -> None:
        """Take all slots back, whoever has them."""
        self._slots.clear()

    def hand_to_tree(self, indices: np.ndarray, start: int, end: int) -> None:
        """Note that a radix tree owns the slots `indices[start:end]`, int64, from now on, until they are freed.

        Raises ValueError naming the index and the slot when `free` would refuse one, when a tree owns one already, or
        when one is also among the other `indices`. Nothing is changed then.
        """
        self._slots.hand_to_tree(indices, start, end)

    def available_size(self) -> int:
        """How many slots are free."""
        return self._slots.available_size()

    def free_slots(self) -> torch.Tensor:
        """Every free slot, ascending, int64. It looks at the whole pool: for checks and pictures."""
        return torch.from_numpy(self._slots.free_slots())

    def check_integrity(self) -> None:
        """RuntimeError when the free list contradicts itself. It looks at the whole pool."""
        self._slots.check_integrity()

    def _plain_storage(self) -> PlainKVStorage:
        if not self.kv_storage.has_plain_buffers:
            raise ValueError(f"{type(self.kv_storage).__name__}: this storage of K/V has no plain buffers; use read()")
        return cast(PlainKVStorage, self.kv_storage)
