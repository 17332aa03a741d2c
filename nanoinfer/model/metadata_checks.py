"""The checks of InputMetadata.create and ModelRunner: a ValueError names the wrong argument before anything is written.

The engine's passes skip them, except `check_mode`: the arguments come from its own Batch and need no checks.
"""

from enum import Enum
from typing import Any

import numpy as np
import torch

from nanoinfer.cache.memory_pool import ReqToTokenPool


def check_mode(forward_mode: Any, modes: type[Enum], prefix_lens: Any) -> None:
    """`forward_mode` must be one of `modes`, and all but DECODE need prefix lengths."""
    if not isinstance(forward_mode, modes):
        raise ValueError(f"forward_mode={forward_mode!r}: must be a {modes.__name__}")
    if forward_mode.name != "DECODE" and prefix_lens is None:
        raise ValueError(f"prefix_lens=None: {forward_mode.name} needs one per request")


def check_tp_size(tp_size: int, split_over: int) -> None:
    """`tp_size` must be the number of processes over which the model is split."""
    if tp_size != split_over:
        raise ValueError(f"tp_size={tp_size}: must be {split_over}, over so many processes is the model split")


def check_input_ids(input_ids: Any, num_new: int, model: Any) -> None:
    """`input_ids` must be an integer tensor `[num_new]` of tokens in the vocabulary, if `model` says how large that is."""
    if not isinstance(input_ids, torch.Tensor):
        raise ValueError(f"input_ids: must be a tensor, got {type(input_ids).__name__}")
    if input_ids.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"input_ids: {input_ids.dtype}, must be torch.int64 or torch.int32")
    if tuple(input_ids.shape) != (num_new,):
        raise ValueError(f"input_ids: shape {list(input_ids.shape)}, must be [{num_new}]")
    vocab_size = getattr(getattr(model, "config", None), "vocab_size", torch.iinfo(input_ids.dtype).max)
    limit = vocab_size - 1
    for token in input_ids[(input_ids < 0) | (input_ids > limit)][:1].tolist():
        raise ValueError(f"input_ids: token {token} is outside 0..{limit}")


def check_requests(rows: np.ndarray, seqs: np.ndarray, prefixes: np.ndarray, pool: ReqToTokenPool) -> None:
    """There must be one row, one sequence length and one prefix length per request, within the pool's limits."""
    if not len(rows):
        raise ValueError("req_pool_indices: a pass needs at least one request")
    for name, array in (("seq_lens", seqs), ("prefix_lens", prefixes)):
        if len(array) != len(rows):
            raise ValueError(f"{name}: {len(array)} values for {len(rows)} requests; the numbers must be equal")
    for name, array, low, high in (
        ("req_pool_indices", rows, 0, np.full(len(rows), pool.size - 1)),
        ("seq_lens", seqs, 1, np.full(len(rows), pool.max_context_len)),
        ("prefix_lens", prefixes, 0, seqs - 1),
    ):
        for i in np.flatnonzero((array < low) | (array > high))[:1]:
            raise ValueError(f"{name}[{i}]={array[i]}: must be in {low}..{high[i]}")
    for row in _repeated(rows):
        raise ValueError(f"req_pool_indices: row {row} is given twice; each request must have its own")


def check_slots(slots: np.ndarray, num_new: int, size: int, start: int | None, end: int | None) -> None:
    """There must be one slot of the pool per new token. `start` and `end` must be the same slots as a range, or None."""
    if len(slots) != num_new:
        raise ValueError(f"out_cache_loc: {len(slots)} slots for {num_new} new tokens; the numbers must be equal")
    for slot in slots[(slots < 0) | (slots >= size)][:1]:
        raise ValueError(f"out_cache_loc: slot {slot} is outside 0..{size - 1}")
    for slot in _repeated(slots):
        raise ValueError(f"out_cache_loc: slot {slot} is given twice; one token's K/V would overwrite the other's")
    for name, value in (("out_cache_cont_start", start), ("out_cache_cont_end", end)):
        if value is not None and not isinstance(value, int | np.integer):
            raise ValueError(f"{name}={value!r}: must be an integer or None")
    if (start is None) != (end is None):
        raise ValueError(f"out_cache_cont_start={start}, out_cache_cont_end={end}: give both or neither")
    if start is not None and not np.array_equal(slots, np.arange(start, end)):
        raise ValueError(f"out_cache_cont_start={start}, out_cache_cont_end={end}: must be the range of out_cache_loc")


def check_indices(
    kv_indices: np.ndarray, slots: np.ndarray, rows: np.ndarray, seqs: np.ndarray, prefixes: np.ndarray, size: int
) -> None:
    """Slots of tokens before this pass must be in the pool, since backends read there, and must not be written to."""
    row, position = rows.repeat(seqs), np.arange(len(kv_indices)) - (seqs.cumsum() - seqs).repeat(seqs)
    is_prefix = position < prefixes.repeat(seqs)
    for i in np.flatnonzero(is_prefix & ((kv_indices < 0) | (kv_indices >= size)))[:1]:
        raise ValueError(f"req_to_token[{row[i]}, {position[i]}]={kv_indices[i]}: must be in 0..{size - 1}")
    for i in np.flatnonzero(is_prefix & np.isin(kv_indices, slots))[:1]:
        raise ValueError(
            f"out_cache_loc: slot {kv_indices[i]} is req_to_token[{row[i]}, {position[i]}], a prefix in this pass; "
            "a new token's K/V would overwrite it"
        )


def _repeated(numbers: np.ndarray) -> list[int]:
    """The first number that occurs more than once, or nothing."""
    values, counts = np.unique(numbers, return_counts=True)
    return values[counts > 1][:1].tolist()
