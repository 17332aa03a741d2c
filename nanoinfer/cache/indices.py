"""Helpers for slot and row numbers: convert what callers pass to arrays, check sizes, and find consecutive runs."""

import operator
from collections.abc import Sequence

import numpy as np
import torch

Indices = torch.Tensor | np.ndarray | Sequence[int]


def as_int_array(indices: Indices | None, name: str) -> np.ndarray:
    """Convert `indices` to a one-dimensional int64 array. ValueError for anything but integers (nothing is rounded)."""
    if isinstance(indices, torch.Tensor) and indices.numel() and indices.is_floating_point():
        raise ValueError(f"{name}: expected integers, got {indices.dtype}")  # numpy has no bfloat16, so check here
    array = indices.detach().cpu().numpy() if isinstance(indices, torch.Tensor) else np.asarray(indices)
    if array.ndim != 1:
        raise ValueError(f"{name}: expected one dimension, got shape {list(array.shape)}")
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(f"{name}: expected integers, got {array.dtype}")
    return array.astype(np.int64, copy=False)


def checked_size(need_size: int, page_size: int) -> int:
    """Return `need_size` as a plain int. Integers from numpy or torch are accepted, floats are not.

    ValueError when it is not an integer, is negative, or is not a multiple of `page_size`.
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
    """Split an int array into runs of consecutive numbers: `[(start, end), ...]`, with `end` exclusive."""
    if not numbers.size:
        return []
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    starts = numbers[np.concatenate(([0], breaks))]
    ends = numbers[np.concatenate((breaks - 1, [numbers.size - 1]))] + 1
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def common_prefix_len(a: np.ndarray, b: np.ndarray) -> int:
    """How many leading elements are equal. Compares growing chunks, so the cost depends on the answer, not the lengths."""
    done, chunk, limit = 0, 1024, min(len(a), len(b))
    while done < limit:
        stop = min(done + chunk, limit)
        differ = a[done:stop] != b[done:stop]
        if differ.any():
            return done + int(differ.argmax())
        done, chunk = stop, 2 * chunk
    return limit
