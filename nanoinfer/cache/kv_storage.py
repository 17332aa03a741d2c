"""KVStorage: how a TokenToKVPool keeps K/V in memory. `plain` keeps it as it is; other kinds can be registered."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch

from nanoinfer.registry import KV_STORAGES


class KVStorage(ABC):
    """K and V of `size` slots in each of `layer_num` layers: `head_num` heads (Hk) of `head_dim` numbers (D) per token.

    To add a kind, subclass this and register it under the name that `kv_cache_dtype` will use:
    `KV_STORAGES["mine"] = MyStorage`. It may keep K/V on `device` in any form, but it takes and returns the model's
    `dtype`. The pool creates it with `MyStorage(size, dtype, head_num, head_dim, layer_num, device)`.
    `has_plain_buffers` promises `key_buffers` and `value_buffers` as in PlainKVStorage, which kernels read in place,
    without `read`. So a kind that keeps K/V in another form derives from KVStorage, not from PlainKVStorage.
    """

    has_plain_buffers = False

    @staticmethod
    @abstractmethod
    def bytes_per_token(dtype: torch.dtype, head_num: int, head_dim: int, layer_num: int) -> int:
        """How many bytes one slot takes: K and V of all layers together."""

    @abstractmethod
    def write(self, layer_id: int, slots: torch.Tensor | slice, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store `keys` and `values` `[T, Hk, D]` of one layer in `slots`: an index `[T]`, or a slice of neighbours."""

    @abstractmethod
    def read(self, layer_id: int, slots: torch.Tensor | slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of one layer in `slots` (an index of any shape, or a slice): `[*slots.shape, Hk, D]`."""

    def slot_buffers(self) -> Sequence[torch.Tensor]:
        """All tensors that hold K/V, `[N, ...]` each, contiguous. Whoever copies what they have for a slot copies its K/V
        bit for bit. If a kind returns none, its K/V cannot be copied, and `host_cache_tokens` is refused.
        """
        return ()


class PlainKVStorage(KVStorage):
    """`key_buffers` and `value_buffers`: one tensor `[N, Hk, D]` per layer, in the model's dtype."""

    has_plain_buffers = True

    def __init__(
        self, size: int, dtype: torch.dtype, head_num: int, head_dim: int, layer_num: int, device: torch.device
    ):
        shape = (size, head_num, head_dim)
        self.key_buffers = [lazy_zeros(shape, dtype, device) for _ in range(layer_num)]
        self.value_buffers = [lazy_zeros(shape, dtype, device) for _ in range(layer_num)]

    @staticmethod
    def bytes_per_token(dtype: torch.dtype, head_num: int, head_dim: int, layer_num: int) -> int:
        """One number of `dtype` for each element of K and of V, in every layer and head."""
        return 2 * layer_num * head_num * head_dim * dtype.itemsize

    def write(self, layer_id: int, slots: torch.Tensor | slice, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Copy them into the buffers."""
        self.key_buffers[layer_id][slots] = keys
        self.value_buffers[layer_id][slots] = values

    def read(self, layer_id: int, slots: torch.Tensor | slice) -> tuple[torch.Tensor, torch.Tensor]:
        """A view of the buffers for a slice; a copy for an index."""
        return self.key_buffers[layer_id][slots], self.value_buffers[layer_id][slots]

    def slot_buffers(self) -> Sequence[torch.Tensor]:
        """Keys, then values, of all layers."""
        return *self.key_buffers, *self.value_buffers


KV_STORAGES["plain"] = KV_STORAGES["auto"] = PlainKVStorage


def kv_storage_kind(kv_cache_dtype: str | None) -> Any:
    """The subclass of KVStorage that `kv_cache_dtype` names; None means `plain`. ValueError for an unknown name."""
    name = "plain" if kv_cache_dtype is None else kv_cache_dtype
    KV_STORAGES.check(name)
    return KV_STORAGES[name]


def new_kv_storage(
    kv_cache_dtype: str | None,
    size: int,
    dtype: torch.dtype,
    head_num: int,
    head_dim: int,
    layer_num: int,
    device: torch.device,
) -> KVStorage:
    """A storage of the kind that `kv_cache_dtype` names. ValueError for an unknown name, for a number below 1, and for a
    kind that does not return K/V as KVStorage promises."""
    for name, value in (("head_num", head_num), ("head_dim", head_dim), ("layer_num", layer_num)):
        if value < 1:
            raise ValueError(f"{name}={value}: must be at least 1")
    storage: KVStorage = kv_storage_kind(kv_cache_dtype)(size, dtype, head_num, head_dim, layer_num, device)
    check_kv_storage(storage, size, dtype, head_num, head_dim)
    return storage


def check_kv_storage(storage: KVStorage, size: int, dtype: torch.dtype, head_num: int, head_dim: int) -> None:
    """ValueError unless `storage` returns K/V as KVStorage promises: backends rely on these shapes and dtypes."""
    given = [("read", tensor, 1) for tensor in storage.read(0, slice(0, 1))]
    if storage.has_plain_buffers:
        plain = cast(PlainKVStorage, storage)
        given += [("a plain buffer", buffer, size) for buffer in (*plain.key_buffers, *plain.value_buffers)]
    for what, tensor, num_slots in given:
        wanted = (num_slots, head_num, head_dim)
        if tensor.dtype != dtype or tuple(tensor.shape) != wanted:
            raise ValueError(
                f"{type(storage).__name__}: {what} is {tensor.dtype} {list(tensor.shape)}, must be {dtype} {list(wanted)}"
            )


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Like `torch.zeros`, but on the host the operating system provides each page of memory only when it is first written.

    So a pool that is never filled never takes up its full size.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    cache_line = 64
    size = math.prod(shape) * dtype.itemsize
    memory = np.zeros(size + cache_line, dtype=np.uint8)
    start = -memory.ctypes.data % cache_line
    return torch.from_numpy(memory[start : start + size]).view(dtype).view(shape)


class Int8KVStorage(KVStorage):
    """A token's K (or V) of one head, `D` numbers `x`, is kept as int8 `round(x / scale)` with `scale = max |x| / 127`.

    That is D + 4 bytes instead of 2 D in bfloat16: 1.9 times the tokens in the same memory for D = 64. `read` returns
    `number * scale`, rounded to the model's dtype; it differs from x by at most half a scale, and that rounding. Numbers
    must be finite.
    Per layer: `key_numbers` and `value_numbers`, int8 `[N, Hk, D]`; `key_scales` and `value_scales`, float32 `[N, Hk]`.
    """

    def __init__(
        self, size: int, dtype: torch.dtype, head_num: int, head_dim: int, layer_num: int, device: torch.device
    ):
        def buffers(shape: tuple[int, ...], number_type: torch.dtype) -> list[torch.Tensor]:
            return [lazy_zeros(shape, number_type, device) for _ in range(layer_num)]

        self.dtype = dtype
        self.key_numbers, self.value_numbers = (buffers((size, head_num, head_dim), torch.int8) for _ in "kv")
        self.key_scales, self.value_scales = (buffers((size, head_num), torch.float32) for _ in "kv")

    @staticmethod
    def bytes_per_token(dtype: torch.dtype, head_num: int, head_dim: int, layer_num: int) -> int:
        """A byte for each element of K and of V, and 4 bytes for each scale."""
        return 2 * layer_num * head_num * (head_dim + 4)

    def write(self, layer_id: int, slots: torch.Tensor | slice, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Quantize each head by itself, so that what a token gets does not depend on the tokens beside it."""
        self.key_numbers[layer_id][slots], self.key_scales[layer_id][slots] = _quantized(keys)
        self.value_numbers[layer_id][slots], self.value_scales[layer_id][slots] = _quantized(values)

    def read(self, layer_id: int, slots: torch.Tensor | slice) -> tuple[torch.Tensor, torch.Tensor]:
        """`number * scale` in float32, rounded to the model's dtype."""
        keys = self.key_numbers[layer_id][slots] * self.key_scales[layer_id][slots][..., None]
        values = self.value_numbers[layer_id][slots] * self.value_scales[layer_id][slots][..., None]
        return keys.to(self.dtype), values.to(self.dtype)

    def slot_buffers(self) -> Sequence[torch.Tensor]:
        """Numbers, then scales, of all layers."""
        return *self.key_numbers, *self.value_numbers, *self.key_scales, *self.value_scales


def _quantized(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`x` [..., D] → int8 [..., D] and float32 scales [...]. A head of zeros has scale 0."""
    x = x.float()
    scales = x.abs().amax(-1) / 127
    numbers = (x / scales.where(scales > 0, 1)[..., None]).round()  # to nearest, halves to the even number
    return numbers.clamp(-127, 127).to(torch.int8), scales  # a scale below the smallest normal number is inexact


KV_STORAGES["int8"] = Int8KVStorage
