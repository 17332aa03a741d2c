"""InputMetadata: everything that a pass needs to know about its batch. It is made once per pass and read by every layer."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from nanoinfer.cache.indices import Indices
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.model.adapter_rows import AdapterRows
from nanoinfer.model.forward_batch import UNSET, ForwardBatch, ForwardMode
from nanoinfer.model.metadata_checks import check_indices, check_tp_size, checked_batch


def paged_csr(
    kv_indptr: torch.Tensor, kv_indices: torch.Tensor, page_size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Describe the tokens of `kv_indptr` [B+1] and `kv_indices` [Σ], which are slots, in pages of `page_size` slots.

    Returns int32 `kv_indptr` [B+1], which counts pages; `kv_indices`, which are page numbers; and `kv_last_page_len` [B],
    how many tokens are in each sequence's last page, 1..P. With `pages = key_buffer.view(N // P, P, Hk, D)`, sequence i is
    `pages[kv_indices[kv_indptr[i] : kv_indptr[i + 1]]]`, end to end, without the unused end of the last page.

    Raises ValueError naming the token when a sequence's slots do not fill one page after another from its start and in
    order, or when K/V is not stored (−1). Source: FlashInfer, "KV-Cache Layout in FlashInfer", page table layout.
    """
    seq_lens = kv_indptr.diff().long()
    num_pages = (seq_lens + page_size - 1) // page_size
    request = torch.arange(len(seq_lens), device=seq_lens.device).repeat_interleave(seq_lens)
    position = torch.arange(len(kv_indices), device=seq_lens.device) - kv_indptr[request]
    page_indptr = torch.cat((kv_indptr[:1].long(), num_pages.cumsum(0)))
    offset = position % page_size
    pages = kv_indices[offset == 0] // page_size
    expected = pages[page_indptr[request] + position // page_size] * page_size + offset
    for i in torch.nonzero((expected != kv_indices) | (kv_indices < 0))[:1, 0].tolist():
        raise ValueError(
            f"kv_indices[{i}]={int(kv_indices[i])}: token {int(position[i])} of request {int(request[i])} must be slot "
            f"{int(offset[i])} of a page of {page_size}, in the page of the token before it or at the start of one"
        )
    return page_indptr.int(), pages.int(), ((seq_lens - 1) % page_size + 1).int()


@dataclass
class InputMetadata:
    """`B` requests with `T` new tokens, and `Σ` tokens in all. Index tensors are on the pool's device.

    The network reads:

    | field | shape, dtype | meaning |
    |---|---|---|
    | `forward_mode` | ForwardMode | EXTEND or DECODE; the pictures of a VERIFY describe it like an EXTEND |
    | `positions` | [T] int64 | EXTEND: `prefix_len..seq_len-1` of each request in turn; DECODE: `seq_len - 1` |
    | `out_cache_loc` | [T] int32 | the slot that each new token's K/V goes to; layers read `out_cache_index` instead |
    | `out_cache_cont_start`, `_end` | int or None | the same slots as a range, if they are neighbours |
    | `logit_rows` | [k] int or None | the new tokens that get logits (EXTEND: the last of each request); None: all |
    | `return_normalized_logprob` | bool | EXTEND: also compute each new token's log-probability given those before it |
    | `only_likeliest` | bool | captured graphs: the likeliest tokens are enough, if the head can find them by itself |
    | `batch` | ForwardBatch | what this was made from, for what else is known of the pass; on the host |
    | `adapters` | AdapterRows or None | the adapter that each new token uses; None: no token uses one |
    | `attention_backend` | AttentionBackend | computes the layers' attention |

    Attention backends read, besides `forward_mode`:

    | field | shape, dtype | meaning |
    |---|---|---|
    | `batch_size`, `max_seq_len` | int | B, the maximum of `seq_lens` |
    | `seq_lens` | [B] int32 | tokens in each sequence after this pass |
    | `start_loc` | [B] int32 | exclusive prefix sum of `seq_lens` |
    | `qo_indptr`, `kv_indptr` | [B+1] int32 | CSR row pointers of new tokens and of all tokens |
    | `kv_indices` | [Σ] int32 | slots of every token of every request, in order; −1 if the token's K/V is not stored |
    | `token_to_kv_pool` | TokenToKVPool | the pool that these slots are in |
    | `attention_mask` | [T, W] or None | forward_tensor only: added to each new token's scores, by index in its sequence |
    | `attention_plan` | | what `attention_backend` computes once per pass and uses in every layer |

    No network or backend here reads the other fields. They are part of the original interface (SGLang's and FlashInfer's),
    for kernels that are written for it.

    | field | shape, dtype | meaning |
    |---|---|---|
    | `model_runner` | ModelRunner | whose pools these are |
    | `total_num_tokens` | int | Σ, the sum of `seq_lens` |
    | `req_to_token_pool` | ReqToTokenPool | the table from positions to slots |
    | `req_pool_indices` | [B] int32 | the requests' rows in that table |
    | `prefix_lens` | [B] int32 | tokens that have K/V already; None in DECODE, where all but one have |
    | `extend_seq_lens`, `extend_start_loc` | [B] int32 | None in DECODE: `seq_lens - prefix_lens`; its prefix sum |
    | `max_extend_len` | int | the maximum of `extend_seq_lens`; 0 in DECODE |
    | `other_kv_index` | int | DECODE only: the first request's newest slot, an index that is always safe to read from |
    | `kv_last_page_len` | [B] int32 | always 1: the `kv_` fields describe pages of one token (see also `paged_csr`) |
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

    extend_seq_lens: torch.Tensor | None = None
    extend_start_loc: torch.Tensor | None = None
    max_extend_len: int = 0

    out_cache_loc: torch.Tensor = UNSET
    out_cache_cont_start: int | None = None
    out_cache_cont_end: int | None = None

    other_kv_index: int | None = None
    return_normalized_logprob: bool = False

    qo_indptr: torch.Tensor = UNSET
    kv_indptr: torch.Tensor = UNSET
    kv_indices: torch.Tensor = UNSET
    kv_last_page_len: torch.Tensor = UNSET

    model_runner: Any = None
    batch: ForwardBatch = UNSET
    logit_rows: torch.Tensor | None = None
    only_likeliest: bool = False
    adapters: AdapterRows | None = None
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
    ) -> "InputMetadata":
        """Check explicit arguments, and derive all fields from them (see `of`). Changes nothing.

        `tp_size`: over how many processes `model_runner` splits the model. The metadata is the same in each of them.
        `prefix_lens` is ignored in DECODE. Shapes and dtypes: see the class's tables.

        Raises ValueError naming the field when shapes or values do not fit together, when two requests share a row, or
        when a new slot is given twice or is in any request's prefix.
        Source: nano-sglang's `InputMetadata`; the CSR fields are FlashInfer's.
        """
        span = out_cache_cont_start, out_cache_cont_end
        check_tp_size(tp_size, getattr(model_runner, "tp_size", 1))
        batch = checked_batch(model_runner, forward_mode, req_pool_indices, seq_lens, prefix_lens, out_cache_loc, *span)
        metadata = cls.of(model_runner, replace(batch, wants_prompt_logprobs=return_normalized_logprob))
        metadata.out_cache_cont_start, metadata.out_cache_cont_end = span
        check_indices(metadata.kv_indices.cpu().numpy(), batch, model_runner.token_to_kv_pool.size)
        return metadata

    @classmethod
    def of(cls, model_runner: Any, batch: ForwardBatch) -> "InputMetadata":
        """Derive all fields from what the scheduler knows, which needs no checks. Changes nothing.

        `model_runner` provides `req_to_token_pool` and `token_to_kv_pool`. The slots of tokens that have K/V already come
        from the requests' rows; those of new tokens come from `out_cache_loc`. The arithmetic is done in numpy on the host;
        what the layers need is moved to the pool's device.
        """
        pool, kv_pool = model_runner.req_to_token_pool, model_runner.token_to_kv_pool
        extend, seqs, slots = batch.prefix_lens is not None, batch.seq_lens.numpy(), batch.out_cache_loc.numpy()
        prefixes = seqs - 1 if batch.prefix_lens is None else batch.prefix_lens.numpy()
        positions = np.concatenate([*map(np.arange, prefixes, seqs)]) if extend else prefixes
        start, end = _neighbours(slots)
        metadata = cls(
            forward_mode=batch.forward_mode,
            batch_size=len(seqs),
            total_num_tokens=int(seqs.sum()),
            max_seq_len=int(seqs.max()),
            req_pool_indices=batch.req_pool_indices,
            start_loc=_int32(seqs.cumsum() - seqs),
            seq_lens=batch.seq_lens,
            prefix_lens=batch.prefix_lens,
            positions=torch.from_numpy(positions.astype(np.int64, copy=False)),
            req_to_token_pool=pool,
            token_to_kv_pool=kv_pool,
            out_cache_loc=batch.out_cache_loc,
            out_cache_cont_start=start,
            out_cache_cont_end=end,
            other_kv_index=None if extend else slots.item(0),
            return_normalized_logprob=batch.wants_prompt_logprobs,
            model_runner=model_runner,
            batch=batch,
            logit_rows=_int32((seqs - prefixes).cumsum() - 1) if batch.forward_mode is ForwardMode.EXTEND else None,
            attention_backend=getattr(model_runner, "attention_backend", None),
        )
        if batch.adapter_slots is not None:
            metadata.adapters = AdapterRows(batch.adapter_slots.repeat(seqs - prefixes), model_runner.adapters.tables)
        metadata.init_flashinfer_args()
        if extend:
            metadata.init_extend_args()
        for name, value in vars(metadata).items():
            if isinstance(value, torch.Tensor):
                setattr(metadata, name, value.to(kv_pool.device))
        return metadata

    def init_extend_args(self) -> None:
        """Fill in `extend_seq_lens`, `extend_start_loc` and `max_extend_len` from `seq_lens` and `prefix_lens`.

        `of` calls it; the name is nano-sglang's. ValueError in DECODE, because `prefix_lens` is None there.
        """
        if self.prefix_lens is None:
            raise ValueError("prefix_lens=None: only an EXTEND pass has extend arguments")
        self.extend_seq_lens = self.seq_lens - self.prefix_lens
        self.extend_start_loc = (self.extend_seq_lens.cumsum(0) - self.extend_seq_lens).int()
        self.max_extend_len = int(self.extend_seq_lens.max())

    def init_flashinfer_args(self, tp_size: int = 1) -> None:
        """Fill in the CSR fields `qo_indptr`, `kv_indptr`, `kv_indices` and `kv_last_page_len` from the others.

        `of` calls it; the name is nano-sglang's. This is FlashInfer's description for page size 1, whatever the
        pool's page size. It is the same in all `tp_size` processes over which a model is split: slots have the same numbers
        everywhere.
        """
        rows, seqs, slots = (t.cpu().numpy() for t in (self.req_pool_indices, self.seq_lens, self.out_cache_loc))
        prefixes = seqs - 1 if self.prefix_lens is None else self.prefix_lens.cpu().numpy()
        table = self.req_to_token_pool.req_to_token.cpu().numpy()  # no copy if the pool is on the host
        kv_indptr, qo_indptr = (np.concatenate(([0], lens.cumsum())) for lens in (seqs, seqs - prefixes))
        position = np.arange(kv_indptr[-1]) - kv_indptr[:-1].repeat(seqs)
        kv_indices = table[rows.repeat(seqs), position]
        kv_indices[position >= prefixes.repeat(seqs)] = slots
        csr = (_int32(array).to(self.seq_lens.device) for array in (qo_indptr, kv_indptr, kv_indices))
        self.qo_indptr, self.kv_indptr, self.kv_indices = csr
        self.kv_last_page_len = torch.ones_like(self.seq_lens)

    def paged_csr(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """FlashInfer's description in the pool's pages: `kv_indptr` [B+1], `kv_indices`, `kv_last_page_len` [B], int32.

        `kv_indptr` counts pages, and `kv_indices` are page numbers: indices into `key_buffer.view(N // P, P, Hk, D)`.
        `kv_last_page_len` is in 1..P. ValueError when a sequence's slots are not in whole, aligned pages.
        """
        return paged_csr(self.kv_indptr, self.kv_indices, self.token_to_kv_pool.page_size)

    def adapters_of(self, rows: torch.Tensor | None) -> AdapterRows | None:
        """The adapters of some of the new tokens, `rows` [k], or of all if it is None."""
        return self.adapters if rows is None or self.adapters is None else self.adapters.of(rows)

    @property
    def out_cache_index(self) -> torch.Tensor | slice:
        """Where new K/V goes: a slice if the slots are neighbours (so it is a plain copy), else `out_cache_loc`."""
        if self.out_cache_cont_start is not None:
            return slice(self.out_cache_cont_start, self.out_cache_cont_end)
        return self.out_cache_loc


def _int32(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.int32, copy=False))


def _neighbours(slots: np.ndarray) -> tuple[int, int] | tuple[None, None]:
    """`slots` as a range (start, end) if they are consecutive, else (None, None)."""
    start, end = slots.item(0), slots.item(-1) + 1
    return (start, end) if slots.tolist() == list(range(start, end)) else (None, None)
