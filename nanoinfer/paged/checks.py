"""Checks single arguments of forward_tensor: the K/V cache, index tensors and numbers."""

import operator
from collections.abc import Sequence

import numpy as np
import torch

from nanoinfer.model.loader import LoadedModel

KVCache = Sequence[tuple[torch.Tensor, torch.Tensor]]  # K and V of each layer, each [num_blocks, P, Hk, D]


def check_kv_cache(kv_cache: KVCache, model: LoadedModel) -> tuple[int, int]:
    """Check that a K/V cache fits the model; returns (num_blocks, block size). ValueError naming layer and tensor."""
    config = model.config
    if not isinstance(kv_cache, Sequence) or len(kv_cache) != config.num_hidden_layers:
        size = len(kv_cache) if isinstance(kv_cache, Sequence) else type(kv_cache).__name__
        raise ValueError(f"kv_cache: {size}, must be a list of {config.num_hidden_layers} (K, V), one per layer")
    first: tuple[int, ...] | None = None
    for layer, pair in enumerate(kv_cache):
        if not isinstance(pair, Sequence) or len(pair) != 2 or not all(isinstance(t, torch.Tensor) for t in pair):
            raise ValueError(f"kv_cache[{layer}]: must be a pair of tensors (K, V)")
        for name, tensor in zip((f"kv_cache[{layer}] K", f"kv_cache[{layer}] V"), pair, strict=True):
            shape = tuple(tensor.shape)
            heads = (config.num_key_value_heads, config.head_dim)
            if len(shape) != 4 or shape[2:] != heads or 0 in shape:
                wanted = f"[num_blocks, block_size, {heads[0]}, {heads[1]}]"
                raise ValueError(f"{name}: shape {list(shape)}, must be {wanted}")
            first = first or shape
            if shape != first:
                raise ValueError(f"{name}: shape {list(shape)}, must be {list(first)} as in layer 0")
            if tensor.dtype != model.dtype or tensor.device != model.device:
                raise ValueError(
                    f"{name}: {tensor.dtype} on {tensor.device}, must be the model's {model.dtype} on {model.device}"
                )
    assert first is not None
    return first[0], first[1]


def int_array(name: str, tensor: torch.Tensor, ndim: int = 1) -> np.ndarray:
    """Convert an int32 or int64 tensor with `ndim` dimensions to int64 on the host. ValueError for anything else."""
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{name}: must be a tensor, got {type(tensor).__name__}")
    if tensor.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{name}: dtype {tensor.dtype}, must be torch.int64 or torch.int32")
    if tensor.ndim != ndim:
        raise ValueError(f"{name}: shape {list(tensor.shape)}, must have {ndim} dimension{'s' if ndim > 1 else ''}")
    return tensor.detach().cpu().numpy().astype(np.int64)


def as_integer(name: str, value: int, least: int = 1) -> int:
    """Return `value` as a plain int. ValueError when it is not an integer, or less than `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        raise ValueError(f"{name}={value!r}: must be an integer of at least {least}")
    return number


def check_range(name: str, array: np.ndarray, low: int, high: int | None = None) -> None:
    """ValueError naming the first element outside low..high."""
    wrong = (array < low) | (array > high) if high is not None else array < low
    if wrong.any():
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        index = ", ".join(map(str, where))
        limit = f"in {low}..{high}" if high is not None else f"at least {low}"
        raise ValueError(f"{name}[{index}]={array[where]}: must be {limit}")
