"""Batch: the requests, slots and tensors of one forward pass."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from nanoinfer.cache_manager import CacheManager
from nanoinfer.input_metadata import ForwardMode
from nanoinfer.req import Req


@dataclass
class Batch:
    """One forward pass over `B` requests and `T` new tokens; tensors on the host.

    `input_ids` int64 [T], `req_pool_indices`, `seq_lens` int32 [B], `prefix_lens` int32 [B] (None in DECODE),
    `out_cache_loc` int32 [T]; `out_cache_cont_start`/`_end` where those slots are neighbours. After an EXTEND with
    `return_normalized_logprob`, `prompt_logprobs` holds the log-probability of each new token under the token before it,
    float32 [T] (NaN for the first of each request, whose predecessor is not in this pass).
    """

    reqs: Sequence[Req]
    forward_mode: ForwardMode
    input_ids: torch.Tensor
    req_pool_indices: torch.Tensor
    seq_lens: torch.Tensor
    prefix_lens: torch.Tensor | None
    out_cache_loc: torch.Tensor
    out_cache_cont_start: int | None = None
    out_cache_cont_end: int | None = None
    return_normalized_logprob: bool = False
    prompt_logprobs: torch.Tensor | None = None

    @classmethod
    def extend(cls, reqs: Sequence[Req], cache: CacheManager) -> "Batch":
        """The pass that computes what is new in `reqs`, each with its prefix locked and no row yet.

        Gives every request a row and the slots for its new tokens, and writes them into the row.
        """
        rows = cache.req_to_token_pool.alloc(len(reqs))
        assert rows is not None, "admission counts rows"
        need = [cache.whole_pages(req.num_tokens) - req.prefix_len for req in reqs]
        slots = np.split(cache.alloc_slots(sum(need)), np.cumsum(need)[:-1])
        for req, row, own in zip(reqs, rows.tolist(), slots, strict=True):
            req.req_pool_idx = row
            req.allocated_len, req.kv_len = req.prefix_len + len(own), req.prefix_len
            cache.rows[row, : req.prefix_len] = req.prefix_indices.numpy()
            cache.rows[row, req.prefix_len : req.allocated_len] = own
        new = [(req, slice(req.prefix_len, req.num_tokens)) for req in reqs]
        return cls._of(
            reqs,
            ForwardMode.EXTEND,
            input_ids=np.concatenate([req.token_ids[span] for req, span in new]),
            rows=rows.numpy(),
            seq_lens=np.array([req.num_tokens for req in reqs], dtype=np.int32),
            prefix_lens=np.array([req.prefix_len for req in reqs], dtype=np.int32),
            out_cache_loc=np.concatenate([cache.rows[req.req_pool_idx, span] for req, span in new]),
            return_normalized_logprob=any(req.params.prompt_logprobs for req in reqs),
        )

    @classmethod
    def decode(cls, reqs: Sequence[Req], cache: CacheManager) -> "Batch":
        """The pass that reads the newest token of each running request. A new page for those whose last one is full."""
        rows = np.array([req.req_pool_idx for req in reqs], dtype=np.int32)
        seq_lens = np.array([req.num_tokens for req in reqs], dtype=np.int32)
        full = [req for req in reqs if req.allocated_len < req.num_tokens]
        pages = cache.alloc_slots(len(full) * cache.page_size).reshape(-1, cache.page_size)
        for req, page in zip(full, pages, strict=True):
            cache.rows[req.req_pool_idx, req.allocated_len : req.allocated_len + cache.page_size] = page
            req.allocated_len += cache.page_size
        return cls._of(
            reqs,
            ForwardMode.DECODE,
            input_ids=np.array([req.token_ids[req.num_tokens - 1] for req in reqs], dtype=np.int64),
            rows=rows,
            seq_lens=seq_lens,
            prefix_lens=None,
            out_cache_loc=cache.rows[rows, seq_lens - 1],
        )

    @classmethod
    def _of(
        cls,
        reqs: Sequence[Req],
        forward_mode: ForwardMode,
        input_ids: np.ndarray,
        rows: np.ndarray,
        seq_lens: np.ndarray,
        prefix_lens: np.ndarray | None,
        out_cache_loc: np.ndarray,
        return_normalized_logprob: bool = False,
    ) -> "Batch":
        first = int(out_cache_loc[0])
        end = first + len(out_cache_loc)
        contiguous = bool((out_cache_loc == np.arange(first, end)).all())
        return cls(
            reqs,
            forward_mode,
            torch.from_numpy(input_ids),
            torch.from_numpy(rows),
            torch.from_numpy(seq_lens),
            None if prefix_lens is None else torch.from_numpy(prefix_lens),
            torch.from_numpy(out_cache_loc),
            out_cache_cont_start=first if contiguous else None,
            out_cache_cont_end=end if contiguous else None,
            return_normalized_logprob=return_normalized_logprob,
        )
