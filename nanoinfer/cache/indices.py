"""Indices: slot and row numbers as callers bring them, as arrays and as runs; and how many of them are asked for."""

import operator
from collections.abc import Sequence

import numpy as np
import torch

Indices = torch.Tensor | np.ndarray | Sequence[int]


def as_int_array(indices: Indices | None, name: str) -> np.ndarray:
    """`indices` as a one-dimensional int64 array; ValueError for anything but integers (nothing is rounded)."""
    if isinstance(indices, torch.Tensor) and indices.numel() and indices.is_floating_point():
        raise ValueError(f"{name}: expected integers, got {indices.dtype}")  # numpy has no bfloat16 to tell
    array = indices.detach().cpu().numpy() if isinstance(indices, torch.Tensor) else np.asarray(indices)
    if array.ndim != 1:
        raise ValueError(f"{name}: expected one dimension, got shape {list(array.shape)}")
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(f"{name}: expected integers, got {array.dtype}")
    return array.astype(np.int64, copy=False)


def checked_size(need_size: int, page_size: int) -> int:
    """`need_size` as a plain int; an integer of numpy or torch will do, a float will not.

    ValueError when it is no integer, negative or no multiple of `page_size`.
    """
    try:
        need_size = operator.index(need_size)
    except TypeError:
        raise ValueError(f"need_size={need_size!r}: must be an integer") from None
    if need_size < 0:
        raise ValueError(f"need_size={need_size}: must not be negative")
    if need_size % page_size:
        raise ValueError(f"need_size={need_size}: must be a multiple of page_size={page_size}")
    return need_size


def consecutive_runs(numbers: np.ndarray) -> list[tuple[int, int]]:
    """An int array cut, wherever the next number is not one more, into runs: `[(start, end), ...]`, `end` exclusive."""
    if not numbers.size:
        return []
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    starts = numbers[np.concatenate(([0], breaks))]
    ends = numbers[np.concatenate((breaks - 1, [numbers.size - 1]))] + 1
    return list(zip(starts.tolist(), ends.tolist(), strict=True))
