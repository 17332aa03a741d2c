"""The checks of InputMetadata.create and ModelRunner: a ValueError names the wrong argument before anything is written.

The engine's passes skip them: what its scheduler has planned needs no checks.
"""

from typing import Any

import numpy as np
import torch

from nanoinfer.cache.indices import Indices, as_int_array
from nanoinfer.cache.memory_pool import ReqToTokenPool
from nanoinfer.model.forward_batch import ForwardBatch, ForwardMode


def checked_batch(
    runner: Any,
    forward_mode: ForwardMode,
    req_pool_indices: Indices,
    seq_lens: Indices,
    prefix_lens: Indices | None,
    out_cache_loc: Indices,
    cont_start: int | None,
    cont_end: int | None,
) -> ForwardBatch:
    """The arguments of `InputMetadata.create` as a ForwardBatch, without token ids. ValueError naming a wrong one."""
    check_mode(forward_mode, prefix_lens)
    extend = forward_mode is not ForwardMode.DECODE
    rows, seqs = as_int_array(req_pool_indices, "req_pool_indices"), as_int_array(seq_lens, "seq_lens")
    slots = as_int_array(out_cache_loc, "out_cache_loc")
    prefixes = as_int_array(prefix_lens, "prefix_lens") if extend else seqs - 1
    check_requests(rows, seqs, prefixes, runner.req_to_token_pool)
    check_slots(slots, int((seqs - prefixes).sum()), runner.token_to_kv_pool.size, cont_start, cont_end)
    tensors = (torch.from_numpy(array.astype(np.int32, copy=False)) for array in (rows, seqs, prefixes, slots))
    row_indices, lens, prefix, locs = tensors
    return ForwardBatch(
        forward_mode=forward_mode,
        req_pool_indices=row_indices,
        seq_lens=lens,
        prefix_lens=prefix if extend else None,
        out_cache_loc=locs,
    )


def check_mode(forward_mode: Any, prefix_lens: Any) -> None:
    """`forward_mode` must be a ForwardMode, and all but DECODE need prefix lengths."""
    if not isinstance(forward_mode, ForwardMode):
        raise ValueError(f"forward_mode={forward_mode!r}: must be a ForwardMode")
    if forward_mode is not ForwardMode.DECODE and prefix_lens is None:
        raise ValueError(f"prefix_lens=None: {forward_mode.name} needs one per request")


def check_tp_size(tp_size: int, split_over: int) -> None:
    """`tp_size` must be the number of processes over which the model is split."""
    if tp_size != split_over:
        raise ValueError(f"tp_size={tp_size}: must be {split_over}, the number of processes with a part of the model")


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


def check_indices(kv_indices: np.ndarray, batch: ForwardBatch, size: int) -> None:
    """Slots of tokens before this pass must be in the pool, since backends read there, and must not be written to."""
    rows, seqs, slots = (t.numpy() for t in (batch.req_pool_indices, batch.seq_lens, batch.out_cache_loc))
    row, position = rows.repeat(seqs), np.arange(len(kv_indices)) - (seqs.cumsum() - seqs).repeat(seqs)
    is_prefix = position < (seqs - batch.new_lens.numpy()).repeat(seqs)
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
