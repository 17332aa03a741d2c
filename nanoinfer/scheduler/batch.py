"""Batch: the requests, slots and tensors of one pass."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.model.forward_batch import ForwardBatch, ForwardMode
from nanoinfer.requests.req import DraftView, Req, adjusts_logits


@dataclass(frozen=True, eq=False, kw_only=True)
class Batch(ForwardBatch):
    """The ForwardBatch of `reqs`, `B` requests with `T` new tokens.

    `chunked_req` is the last of `reqs` if its prompt continues after this pass. It gets no token yet.
    """

    reqs: Sequence[Req]
    chunked_req: Req | None = None

    @classmethod
    def extend(cls, reqs: Sequence[Req], cache: CacheManager) -> "Batch":
        """The pass that computes `reqs` up to their `chunk_end`. Newly admitted ones have a locked prefix but no row yet.
        One of `reqs` may have a prompt that is partly computed already.

        Allocates the missing rows, and slots for all new tokens. When an allocation raises, each request keeps what it has
        by then, and `CacheManager.release` takes it back.
        """
        admitted = [req for req in reqs if req.req_pool_idx is None]
        rows = cache.req_to_token_pool.alloc(len(admitted))
        assert rows is not None, "admission counts rows"
        for req, row in zip(admitted, rows.tolist(), strict=True):
            req.req_pool_idx = row
            req.allocated_len = req.kv_len = req.prefix_len
            cache.rows[row, : req.prefix_len] = req.prefix_indices.numpy()
        starts, ends = [req.kv_len for req in reqs], [req.chunk_end for req in reqs]
        batch = cls.of_spans(reqs, ForwardMode.EXTEND, starts, ends, cache)
        top_counts = [req.params.prompt_top_logprobs if req.wants_prompt_logprobs else 0 for req in reqs]
        return replace(
            batch,
            chunked_req=reqs[-1] if reqs[-1].chunk_end < reqs[-1].num_tokens else None,
            wants_prompt_logprobs=any(req.wants_prompt_logprobs for req in reqs),
            prompt_top_counts=top_counts if any(top_counts) else None,
        )

    @classmethod
    def verify(cls, reqs: Sequence[Req], num_drafts: Sequence[int], cache: CacheManager) -> "Batch":
        """The pass that computes the newest token of each request and its drafts, which are in `Req.token_ids` behind its
        tokens, `num_drafts[i]` of them. Allocates the slots that are missing."""
        starts = [req.num_tokens - 1 for req in reqs]
        ends = [req.num_tokens + count for req, count in zip(reqs, num_drafts, strict=True)]
        return cls.of_spans(reqs, ForwardMode.VERIFY, starts, ends, cache)

    @classmethod
    def of_spans(
        cls, reqs: Sequence[Req], mode: ForwardMode, starts: Sequence[int], ends: Sequence[int], cache: CacheManager
    ) -> "Batch":
        """The pass that computes the tokens `starts[i] .. ends[i] - 1` of each request."""
        cache.alloc_up_to(reqs, ends)
        spans = [(req, slice(start, end)) for req, start, end in zip(reqs, starts, ends, strict=True)]
        tokens = np.concatenate([req.token_ids[span] for req, span in spans])
        slots = np.concatenate([cache.rows[req.req_pool_idx, span] for req, span in spans])
        return cls.of(reqs, mode, tokens, np.array(ends, dtype=np.int32), slots, np.array(starts, dtype=np.int32))

    @classmethod
    def decode(cls, reqs: Sequence[Req], cache: CacheManager) -> "Batch":
        """The pass that computes the newest token of each request. Allocates a page for each request whose last is full."""
        full = [req for req in reqs if req.allocated_len < req.num_tokens]
        cache.alloc_up_to(full, [req.num_tokens for req in full])
        tokens = np.array([req.token_ids.item(req.num_tokens - 1) for req in reqs])
        seq_lens = np.array([req.num_tokens for req in reqs], dtype=np.int32)
        slots = cache.rows[np.array([req.req_pool_idx for req in reqs]), seq_lens - 1]
        return cls.of(reqs, ForwardMode.DECODE, tokens, seq_lens, slots)

    @classmethod
    def of(
        cls,
        reqs: Sequence[Req],
        mode: ForwardMode,
        tokens: np.ndarray,
        seq_lens: np.ndarray,
        slots: np.ndarray,
        prefix_lens: np.ndarray | None = None,
    ) -> "Batch":
        """The pass over these new `tokens` int64 and their `slots` int32 [T], with the lengths of the sequences int32 [B].
        All else that a pass needs to know follows from `reqs`."""
        adapter_slots = np.array([-1 if req.adapter is None else req.adapter.slot for req in reqs], dtype=np.int32)
        return cls(
            reqs=reqs,
            forward_mode=mode,
            input_ids=torch.from_numpy(tokens),
            req_pool_indices=torch.from_numpy(np.array([req.req_pool_idx for req in reqs], dtype=np.int32)),
            seq_lens=torch.from_numpy(seq_lens),
            prefix_lens=None if prefix_lens is None else torch.from_numpy(prefix_lens),
            out_cache_loc=torch.from_numpy(slots),
            adapter_slots=adapter_slots if (adapter_slots >= 0).any() else None,
            only_likeliest=only_likeliest(reqs),
        )

    @property
    def logits_owners(self) -> Sequence[Req]:
        """For each of the pass's logits, the request whose next token they choose. In VERIFY, there are logits for a
        request's newest token and for each draft: with these, it is as it will be if the drafts before are accepted."""
        if self.forward_mode is not ForwardMode.VERIFY or self.prefix_lens is None:
            return self.sampled_reqs
        owners: list[Any] = []
        for req, count in zip(self.reqs, self.new_lens.tolist(), strict=True):
            owners += [req, *(DraftView(req, drafts) for drafts in range(1, count))]
        return owners

    @property
    def sampled_reqs(self) -> Sequence[Req]:
        """The requests that get a token from this pass, in the order of `reqs`: all but `chunked_req`."""
        return self.reqs if self.chunked_req is None else self.reqs[:-1]


def only_likeliest(reqs: Sequence[Req]) -> bool:
    """`ForwardBatch.only_likeliest` of these requests."""
    return not any(req.params.wants_logits or adjusts_logits(req) for req in reqs)
