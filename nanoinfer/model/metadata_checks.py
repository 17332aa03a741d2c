"""What InputMetadata.create refuses: a ValueError that names the field, before anything is written.

The engine's passes do not come through here: what its Batch has made needs no checks.
"""

import numpy as np

from nanoinfer.cache.memory_pool import ReqToTokenPool


def check_requests(
    tp_size: int, rows: np.ndarray, seqs: np.ndarray, prefixes: np.ndarray, pool: ReqToTokenPool
) -> None:
    """Rows and lengths: one of each per request, within the pool's limits."""
    if tp_size != 1:
        raise ValueError(f"tp_size={tp_size}: must be 1, this engine does not split a model over devices")
    if not len(rows):
        raise ValueError("req_pool_indices: a pass needs at least one request")
    for name, array in (("seq_lens", seqs), ("prefix_lens", prefixes)):
        if len(array) != len(rows):
            raise ValueError(f"{name}: {len(array)} values for {len(rows)} requests; must be as many")
    for name, array, low, high in (
        ("req_pool_indices", rows, 0, np.full(len(rows), pool.size - 1)),
        ("seq_lens", seqs, 1, np.full(len(rows), pool.max_context_len)),
        ("prefix_lens", prefixes, 0, seqs - 1),
    ):
        for i in np.flatnonzero((array < low) | (array > high))[:1]:
            raise ValueError(f"{name}[{i}]={array[i]}: must be in {low}..{high[i]}")


def check_slots(slots: np.ndarray, num_new: int, size: int, start: int | None, end: int | None) -> None:
    """Where new K/V goes: a slot of the pool for each new token; `start` and `end` the same as a range, or None."""
    if len(slots) != num_new:
        raise ValueError(f"out_cache_loc: {len(slots)} slots for {num_new} new tokens; must be as many")
    for slot in slots[(slots < 0) | (slots >= size)][:1]:
        raise ValueError(f"out_cache_loc: slot {slot} is outside 0..{size - 1}")
    if (start is None) != (end is None):
        raise ValueError(f"out_cache_cont_start={start}, out_cache_cont_end={end}: give both or neither")
    if start is not None and not np.array_equal(slots, np.arange(start, end)):
        raise ValueError(f"out_cache_cont_start={start}, out_cache_cont_end={end}: not the range of out_cache_loc")


def check_indices(kv_indices: np.ndarray, size: int, rows: np.ndarray, positions: np.ndarray) -> None:
    """The slots of all tokens. Backends read memory wherever these say."""
    for i in np.flatnonzero((kv_indices < 0) | (kv_indices >= size))[:1]:
        raise ValueError(f"req_to_token[{rows[i]}, {positions[i]}]={kv_indices[i]}: must be in 0..{size - 1}")
