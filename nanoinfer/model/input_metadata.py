"""InputMetadata: the one description of a batch that a forward pass needs. Made once per pass, read by every layer."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import numpy as np
import torch

from nanoinfer.cache.indices import Indices, as_int_array
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.model.metadata_checks import check_indices, check_requests, check_slots


class ForwardMode(Enum):
    """EXTEND computes the new tokens of sequences whose prefix may have K/V already; DECODE exactly one token of each."""

    EXTEND = auto()
    DECODE = auto()


@dataclass
class InputMetadata:
    """`B` requests, `T` new tokens, `Σ` tokens in all. Index tensors lie on the pool's device.

    The network reads:

    | field | shape, dtype | meaning |
    |---|---|---|
    | `forward_mode` | ForwardMode | |
    | `positions` | [T] int64 | EXTEND: `prefix_len..seq_len-1` of each request in turn; DECODE: `seq_len - 1` |
    | `out_cache_loc` | [T] int32 | the slot that each new token's K/V goes to; read as `out_cache_index` |
    | `out_cache_cont_start`, `_end` | int or None | the same as a range, where the slots are neighbours |
    | `logit_rows` | [k] int or None | the new tokens that get logits (EXTEND: the last of each request); None: all |
    | `return_normalized_logprob` | bool | EXTEND: each new token's log-probability under the one before it is wanted, too |
    | `attention_backend` | AttentionBackend | computes the layers' attention |

    Attention backends read, besides `forward_mode`:

    | field | shape, dtype | meaning |
    |---|---|---|
    | `batch_size`, `max_seq_len` | int | B, the maximum of `seq_lens` |
    | `seq_lens` | [B] int32 | tokens in each sequence after this pass |
    | `start_loc` | [B] int32 | exclusive prefix sum of `seq_lens` |
    | `qo_indptr`, `kv_indptr` | [B+1] int32 | CSR row pointers of new tokens and of all tokens |
    | `kv_indices` | [Σ] int32 | slots of every token of every request, in order; −1 where K/V is not stored |
    | `token_to_kv_pool` | TokenToKVPool | where these slots are |
    | `attention_mask` | [T, W] or None | forward_tensor only: added to each new token's scores, by index in its sequence |
    | `attention_plan` | | what `attention_backend` derives once per pass and uses in every layer |

    No network or backend here reads the others: they are the seed's, for kernels made for its interface or FlashInfer's.

    | field | shape, dtype | meaning |
    |---|---|---|
    | `total_num_tokens` | int | Σ, the sum of `seq_lens` |
    | `req_to_token_pool` | ReqToTokenPool | the table position → slot |
    | `req_pool_indices` | [B] int32 | the requests' rows in it |
    | `prefix_lens` | [B] int32 | tokens whose K/V is there already; None in DECODE: all but one |
    | `extend_seq_lens`, `extend_start_loc` | [B] int32 | EXTEND only: `seq_lens - prefix_lens`, its exclusive prefix sum |
    | `max_extend_len` | int | EXTEND: the maximum of `extend_seq_lens`; 0 in DECODE |
    | `other_kv_index` | int | DECODE only: the newest slot of the first request, a gather index that is always valid |
    | `kv_last_page_len` | [B] int32 | tokens in each sequence's last page |
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

    logit_rows: torch.Tensor | None = None
    attention_mask: torch.Tensor | None = None
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
        *,
        check: bool = True,
    ) -> "InputMetadata":
        """Derive everything from what the scheduler knows. Shapes and dtypes as in the class's tables; changes nothing.

        `model_runner` lends `req_to_token_pool` and `token_to_kv_pool`. Rows are looked up for the tokens that are there
        already; where the new ones go, `out_cache_loc` says. `prefix_lens` does not matter in DECODE. All arithmetic is
        done on the host in numpy; what the layers need is moved to the pool's device in the end.

        Raises ValueError naming the field when shapes or values do not fit together. `check=False` is for arguments that
        trusted code has made or checked, as the engine's Batch: their values are not looked at again.
        Source: seed 002 (nano-sglang's `InputMetadata`); the CSR fields are FlashInfer's.
        """
        rows = as_int_array(req_pool_indices, "req_pool_indices")
        seqs = as_int_array(seq_lens, "seq_lens")
        slots = as_int_array(out_cache_loc, "out_cache_loc")
        prefixes, extend = seqs - 1, forward_mode is ForwardMode.EXTEND
        if extend:
            if prefix_lens is None:
                raise ValueError("prefix_lens=None: EXTEND needs one for each request")
            prefixes = as_int_array(prefix_lens, "prefix_lens")
        pool, kv_pool = model_runner.req_to_token_pool, model_runner.token_to_kv_pool
        table = pool.req_to_token.cpu().numpy()  # no copy where the pool is on the host
        if check:
            check_requests(tp_size, rows, seqs, prefixes, pool)
            check_slots(slots, int((seqs - prefixes).sum()), kv_pool.size, out_cache_cont_start, out_cache_cont_end)

        new_lens = seqs - prefixes
        kv_indptr, qo_indptr = (np.concatenate(([0], np.cumsum(lens))) for lens in (seqs, new_lens))
        req_of_token = np.repeat(np.arange(len(rows)), seqs)
        position = np.arange(kv_indptr[-1]) - kv_indptr[req_of_token]
        kv_indices = table[rows[req_of_token], position]
        is_new = position >= prefixes[req_of_token]
        kv_indices[is_new] = slots
        if check:
            check_indices(kv_indices, kv_pool.size, rows[req_of_token], position)

        def tensor(array: np.ndarray, dtype: type = np.int32) -> torch.Tensor:
            return torch.from_numpy(array.astype(dtype)).to(kv_pool.device)

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
            logit_rows=tensor(qo_indptr[1:] - 1) if extend else None,
            attention_backend=getattr(model_runner, "attention_backend", None),
        )

    @property
    def out_cache_index(self) -> torch.Tensor | slice:
        """Where new K/V goes: a slice where the slots are neighbours (a plain copy), else `out_cache_loc`."""
        if self.out_cache_cont_start is not None:
            return slice(self.out_cache_cont_start, self.out_cache_cont_end)
        return self.out_cache_loc
