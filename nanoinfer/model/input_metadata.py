"""InputMetadata: the one description of a batch that a forward pass needs. Made once a pass, read by every layer."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import numpy as np
import torch

from nanoinfer.cache.indices import Indices, as_int_array
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool


class ForwardMode(Enum):
    """EXTEND computes the new tokens of sequences whose prefix may have K/V already; DECODE exactly one token of each."""

    EXTEND = auto()
    DECODE = auto()


@dataclass
class InputMetadata:
    """`B` requests, `T` new tokens. Index tensors lie on the pool's device.

    | field | shape, dtype | meaning |
    |---|---|---|
    | `batch_size`, `total_num_tokens`, `max_seq_len` | int | B, the sum and the maximum of `seq_lens` |
    | `req_pool_indices` | [B] int32 | rows of `req_to_token` |
    | `seq_lens` | [B] int32 | tokens in each sequence after this pass |
    | `prefix_lens` | [B] int32 | tokens whose K/V is there already (None in DECODE: all but one) |
    | `start_loc` | [B] int32 | exclusive prefix sum of `seq_lens` |
    | `positions` | [T] int64 | EXTEND: `prefix_len..seq_len-1` of each request in turn; DECODE: `seq_len - 1` |
    | `extend_seq_lens`, `extend_start_loc` | [B] int32 | EXTEND: `seq_lens - prefix_lens`, its exclusive prefix sum |
    | `max_extend_len` | int | EXTEND: the maximum of `extend_seq_lens` |
    | `out_cache_loc` | [T] int32 | the slot that each new token's K/V goes to |
    | `out_cache_cont_start`, `_end` | int or None | the same as a range, where the slots are neighbours |
    | `other_kv_index` | int or None | DECODE: the newest slot of the first request, a gather index that is always valid |
    | `return_normalized_logprob` | bool | EXTEND: also wanted is the mean log-probability of the new tokens |
    | `qo_indptr`, `kv_indptr` | [B+1] int32 | CSR row pointers of new tokens and of all tokens |
    | `kv_indices` | [Σ seq_lens] int32 | slots of every token of every request, in order |
    | `kv_last_page_len` | [B] int32 | tokens in each sequence's last page |

    `attention_backend` (an AttentionBackend) computes the layers' attention; `attention_plan` is what it derives once per
    pass and uses in every layer.
    """

    forward_mode: ForwardMode
    batch_size: int
    total_num_tokens: int
    max_seq_len: int
    req_pool_indices: torch.Tensor
    start_loc: torch.Tensor
    seq_lens: torch.Tensor
    prefix_lens: torch.Tensor | None
    positions: torch.Tensor
    req_to_token_pool: ReqToTokenPool
    token_to_kv_pool: TokenToKVPool

    extend_seq_lens: torch.Tensor | None
    extend_start_loc: torch.Tensor | None
    max_extend_len: int

    out_cache_loc: torch.Tensor
    out_cache_cont_start: int | None
    out_cache_cont_end: int | None

    other_kv_index: int | None
    return_normalized_logprob: bool

    qo_indptr: torch.Tensor
    kv_indptr: torch.Tensor
    kv_indices: torch.Tensor
    kv_last_page_len: torch.Tensor

    attention_backend: Any = None
    attention_plan: Any = None

    @classmethod
    def create(
        cls,
        model_runner: Any,
        tp_size: int,
        forward_mode: ForwardMode,
        req_pool_indices: Indices,
        seq_lens: Indices,
        prefix_lens: Indices | None,
        out_cache_loc: Indices,
        out_cache_cont_start: int | None = None,
        out_cache_cont_end: int | None = None,
        return_normalized_logprob: bool = False,
    ) -> "InputMetadata":
        """Derive everything from what the scheduler knows. Shapes and dtypes as in the class's table; changes nothing.

        `model_runner` lends `req_to_token_pool` and `token_to_kv_pool`. Rows are looked up for the tokens that are there
        already; where the new ones go, `out_cache_loc` says.
        `prefix_lens` does not matter in DECODE. All arithmetic is done on the host in numpy; what the layers need is
        moved to the pool's device in the end.

        Raises ValueError naming the field when shapes or values do not fit together.
        Source: seed 002 (nano-sglang's `InputMetadata`); the CSR fields are FlashInfer's.
        """
        rows = as_int_array(req_pool_indices, "req_pool_indices")
        seqs = as_int_array(seq_lens, "seq_lens")
        slots = as_int_array(out_cache_loc, "out_cache_loc")
        extend = forward_mode is ForwardMode.EXTEND
        prefixes = seqs - 1
        if extend:
            if prefix_lens is None:
                raise ValueError("prefix_lens=None: EXTEND needs one for each request")
            prefixes = as_int_array(prefix_lens, "prefix_lens")
        pool, kv_pool = model_runner.req_to_token_pool, model_runner.token_to_kv_pool
        _check(tp_size, rows, seqs, prefixes, slots, pool)

        new_lens = seqs - prefixes
        kv_indptr, qo_indptr = _indptr(seqs), _indptr(new_lens)
        req_of_token = np.repeat(np.arange(len(rows)), seqs)
        position = np.arange(kv_indptr[-1]) - kv_indptr[req_of_token]
        kv_indices = _host_rows(pool)[rows[req_of_token], position]
        is_new = position >= prefixes[req_of_token]
        _check_slots(slots, kv_pool.size, out_cache_cont_start, out_cache_cont_end)
        kv_indices[is_new] = slots
        if kv_indices.min() < 0 or kv_indices.max() >= kv_pool.size:  # backends read memory wherever these say
            i = np.flatnonzero((kv_indices < 0) | (kv_indices >= kv_pool.size))[0]
            raise ValueError(
                f"req_to_token[{rows[req_of_token[i]]}, {position[i]}]={kv_indices[i]}: must be in 0..{kv_pool.size - 1}"
            )

        def tensor(array: np.ndarray, dtype: type = np.int32) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(array, dtype=dtype)).to(kv_pool.device)

        return cls(
            forward_mode=forward_mode,
            batch_size=len(rows),
            total_num_tokens=int(kv_indptr[-1]),
            max_seq_len=int(seqs.max()),
            req_pool_indices=tensor(rows),
            start_loc=tensor(kv_indptr[:-1]),
            seq_lens=tensor(seqs),
            prefix_lens=tensor(prefixes) if extend else None,
            positions=tensor(position[is_new], np.int64),
            req_to_token_pool=pool,
            token_to_kv_pool=kv_pool,
            extend_seq_lens=tensor(new_lens) if extend else None,
            extend_start_loc=tensor(qo_indptr[:-1]) if extend else None,
            max_extend_len=int(new_lens.max()) if extend else 0,
            out_cache_loc=tensor(slots),
            out_cache_cont_start=out_cache_cont_start,
            out_cache_cont_end=out_cache_cont_end,
            other_kv_index=None if extend else int(kv_indices[seqs[0] - 1]),
            return_normalized_logprob=return_normalized_logprob,
            qo_indptr=tensor(qo_indptr),
            kv_indptr=tensor(kv_indptr),
            kv_indices=tensor(kv_indices),
            kv_last_page_len=tensor((seqs - 1) % kv_pool.page_size + 1),
            attention_backend=getattr(model_runner, "attention_backend", None),
        )

    @property
    def out_cache_index(self) -> torch.Tensor | slice:
        """Where new K/V goes: a slice where the slots are neighbours (a plain copy), else `out_cache_loc`."""
        if self.out_cache_cont_start is not None:
            return slice(self.out_cache_cont_start, self.out_cache_cont_end)
        return self.out_cache_loc


def _indptr(lens: np.ndarray) -> np.ndarray:
    """CSR row pointers: 0 and the running sums, `[len(lens) + 1]`."""
    return np.concatenate(([0], np.cumsum(lens)))


def _host_rows(pool: ReqToTokenPool) -> np.ndarray:
    return pool.req_to_token.cpu().numpy()  # no copy where the pool is on the host


def _check(
    tp_size: int, rows: np.ndarray, seqs: np.ndarray, prefixes: np.ndarray, slots: np.ndarray, pool: ReqToTokenPool
) -> None:
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
        wrong = np.flatnonzero((array < low) | (array > high))
        if wrong.size:
            i = wrong[0]
            raise ValueError(f"{name}[{i}]={array[i]}: must be in {low}..{high[i]}")
    num_new = int((seqs - prefixes).sum())
    if len(slots) != num_new:
        raise ValueError(f"out_cache_loc: {len(slots)} slots for {num_new} new tokens; must be as many")


def _check_slots(slots: np.ndarray, size: int, start: int | None, end: int | None) -> None:
    outside = slots[(slots < 0) | (slots >= size)]
    if outside.size:
        raise ValueError(f"out_cache_loc: slot {outside[0]} is outside 0..{size - 1}")
    if (start is None) != (end is None):
        raise ValueError(f"out_cache_cont_start={start}, out_cache_cont_end={end}: give both or neither")
    if start is not None and not np.array_equal(slots, np.arange(start, end)):
        raise ValueError(f"out_cache_cont_start={start}, out_cache_cont_end={end}: not the range of out_cache_loc")
