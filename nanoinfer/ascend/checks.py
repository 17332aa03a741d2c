"""Checks single arguments of forward_tensor: the K/V cache, index tensors and numbers."""

import operator
from collections.abc import Sequence

import numpy as np
import torch

from nanoinfer.model.loader import LoadedModel

KVCache = Sequence[tuple[torch.Tensor, torch.Tensor]]  # K and V of each layer, each [num_blocks, P, Hk, D]


def check_kv_cache(kv_cache: KVCache, model: LoadedModel) -> tuple[int, int]:
    """Check that a K/V cache fits the model; returns (num_blocks, block size). ValueError naming layer and tensor."""
    config, where = model.config, (model.dtype, model.device)
    if len(kv_cache) != config.num_hidden_layers:
        raise ValueError(
            f"kv_cache: {len(kv_cache)}, must be a list of {config.num_hidden_layers} (K, V), one per layer"
        )
    num_blocks, size = (*kv_cache[0][0].shape, 0, 0)[:2]
    wanted = (num_blocks, size, config.num_key_value_heads, config.head_dim)
    for layer, pair in enumerate(kv_cache):
        for name, tensor in zip("KV", pair, strict=True):
            if tensor.shape != wanted or 0 in wanted:
                raise ValueError(f"kv_cache[{layer}] {name}: shape {list(tensor.shape)}, must be {list(wanted)}")
            if (tensor.dtype, tensor.device) != where:
                raise ValueError(f"kv_cache[{layer}] {name}: {tensor.dtype} on {tensor.device}, must be {where}")
    return num_blocks, size


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
