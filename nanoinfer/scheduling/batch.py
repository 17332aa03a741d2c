"""Batch: the requests, slots and tensors of one pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.model.input_metadata import ForwardMode
from nanoinfer.model.layers.prompt_likeliest import Likely, likeliest_of
from nanoinfer.requests.ahead import Ahead
from nanoinfer.requests.req import Req
from nanoinfer.sampling.logits_processors import adjusts_logits


@dataclass
class Batch:
    """One pass over `B` requests with `T` new tokens. Its tensors are on the host.

    `input_ids` int64 [T], `req_pool_indices` and `seq_lens` int32 [B], `prefix_lens` int32 [B] (None in DECODE; in VERIFY,
    a request's new tokens are its newest one and its drafts),
    `out_cache_loc` int32 [T]; `out_cache_cont_start` and `_end` are set if those slots are neighbours. After an EXTEND with
    `wants_prompt_logprobs`, `prompt_logprobs` float32 [T] has the log-probability of each new token given the tokens before
    it (NaN for each request's first new token, because the token before it is not in this pass). `prompt_top_counts` [B]:
    how many likeliest tokens each request wants at these positions, None if none does; `prompt_likeliest` then has them.

    `adapter_places` [B] int32: where each request's adapter is in the AdapterPool, −1 for none; None if none has one.

    `chunked_req` is the last of `reqs` if its prompt continues after this pass. It gets no token yet. `num_sampled`: how
    many tokens the requests have got from this pass.
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
    wants_prompt_logprobs: bool = False
    chunked_req: Req | None = None
    prompt_top_counts: Sequence[int] | None = None
    prompt_logprobs: torch.Tensor | None = None
    prompt_likeliest: Sequence[list[Likely] | None] | None = None
    adapter_places: np.ndarray | None = None
    num_sampled: int = 0

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
        batch = cls.of_spans(
            reqs, ForwardMode.EXTEND, [req.kv_len for req in reqs], [req.chunk_end for req in reqs], cache
        )
        batch.wants_prompt_logprobs = any(req.wants_prompt_logprobs for req in reqs)
        counts = [req.params.prompt_top_logprobs if req.wants_prompt_logprobs else 0 for req in reqs]
        batch.prompt_top_counts = counts if any(counts) else None
        batch.chunked_req = reqs[-1] if reqs[-1].chunk_end < reqs[-1].num_tokens else None
        return batch

    @classmethod
    def verify(cls, reqs: Sequence[Req], num_drafts: Sequence[int], cache: CacheManager) -> "Batch":
        """The pass that computes the newest token of each request and its drafts, which are in `Req.token_ids` behind its
        tokens, `num_drafts[i]` of them. Allocates the slots that are missing."""
        starts = [req.num_tokens - 1 for req in reqs]
        ends = [req.num_tokens + count for req, count in zip(reqs, num_drafts, strict=True)]
        return cls.of_spans(reqs, ForwardMode.VERIFY, starts, ends, cache)

    @classmethod
    def of_spans(
        cls,
        reqs: Sequence[Req],
        mode: ForwardMode,
        starts: Sequence[int],
        ends: Sequence[int],
        cache: CacheManager,
    ) -> "Batch":
        """The pass that computes the tokens `starts[i] .. ends[i] - 1` of each request."""
        cache.alloc_up_to(reqs, ends)
        spans = [(req, slice(start, end)) for req, start, end in zip(reqs, starts, ends, strict=True)]
        out_cache_loc = np.concatenate([cache.rows[req.req_pool_idx, span] for req, span in spans])
        cont_start, cont_end = _neighbours(out_cache_loc)
        return cls(
            reqs,
            mode,
            torch.from_numpy(np.concatenate([req.token_ids[span] for req, span in spans])),
            torch.from_numpy(np.array([req.req_pool_idx for req in reqs], dtype=np.int32)),  # quicker than torch.tensor
            torch.from_numpy(np.array(ends, dtype=np.int32)),
            torch.from_numpy(np.array(starts, dtype=np.int32)),
            torch.from_numpy(out_cache_loc),
            out_cache_cont_start=cont_start,
            out_cache_cont_end=cont_end,
            adapter_places=adapter_places(reqs),
        )

    @classmethod
    def decode(cls, reqs: Sequence[Req], cache: CacheManager) -> "Batch":
        """The pass that computes the newest token of each request. Allocates a page for each request whose last is full."""
        rows = np.array([req.req_pool_idx for req in reqs], dtype=np.int32)
        seq_lens = np.array([req.num_tokens for req in reqs], dtype=np.int32)
        full = [req for req in reqs if req.allocated_len < req.num_tokens]
        cache.alloc_up_to(full, [req.num_tokens for req in full])
        out_cache_loc = cache.rows[rows, seq_lens - 1]
        start, end = _neighbours(out_cache_loc)
        return cls(
            reqs,
            ForwardMode.DECODE,
            torch.from_numpy(np.array([req.token_ids.item(req.num_tokens - 1) for req in reqs])),
            torch.from_numpy(rows),
            torch.from_numpy(seq_lens),
            None,
            torch.from_numpy(out_cache_loc),
            out_cache_cont_start=start,
            out_cache_cont_end=end,
            adapter_places=adapter_places(reqs),
        )

    @property
    def only_likeliest(self) -> bool:
        """True when nothing about the logits is wanted but which token is the likeliest."""
        return only_likeliest(self.reqs)

    @property
    def rows(self) -> Sequence[Req]:
        """The requests whose next token each row of logits chooses. In VERIFY, a request has a row for its newest token and
        one for each draft, in which it is as it will be if the drafts before are accepted."""
        if self.forward_mode is not ForwardMode.VERIFY or self.prefix_lens is None:
            return self.sampled_reqs
        counts = (self.seq_lens - self.prefix_lens).tolist()
        rows: list[Any] = []
        for req, count in zip(self.reqs, counts, strict=True):
            rows += [req, *(Ahead(req, drafts) for drafts in range(1, count))]
        return rows

    @property
    def sampled_reqs(self) -> Sequence[Req]:
        """The requests that get a token from this pass, in the order of `reqs`: all but `chunked_req`."""
        return self.reqs if self.chunked_req is None else self.reqs[:-1]

    def gather_prompt_logprobs(self, logits: torch.Tensor) -> None:
        """Hand the log-probabilities of the prompt tokens in this pass, and of the likeliest tokens at their positions, to
        the requests that want them.

        `logits` [B, V] are those of each request's last token. They predict the first token of its next chunk.
        """
        if self.prompt_logprobs is None or self.prefix_lens is None:
            return
        ends = np.cumsum((self.seq_lens - self.prefix_lens).numpy())[:-1]
        values = np.split(self.prompt_logprobs.float().cpu().numpy(), ends)
        for i, (req, start) in enumerate(zip(self.reqs, self.prefix_lens.tolist(), strict=True)):
            if req.gathered_prompt_logprobs is not None and req.wants_prompt_logprobs:
                likeliest = None if self.prompt_likeliest is None else self.prompt_likeliest[i]
                next_logprob = None
                if req.chunk_end < req.prompt_len:
                    table = logits[i].float().log_softmax(-1)
                    next_logprob = float(table[int(req.token_ids[req.chunk_end])])
                    if likeliest is not None:
                        likeliest = likeliest + likeliest_of(table[None], req.params.prompt_top_logprobs)
                req.gathered_prompt_logprobs.add(start, values[i].tolist(), next_logprob, likeliest)


def only_likeliest(reqs: Sequence[Req]) -> bool:
    """`Batch.only_likeliest` of these requests."""
    return not any(req.params.wants_logits or adjusts_logits(req) for req in reqs)


def adapter_places(reqs: Sequence[Req]) -> np.ndarray | None:
    """`Batch.adapter_places` of these requests."""
    if all(req.adapter is None for req in reqs):
        return None
    return np.array([-1 if req.adapter is None else req.adapter.place for req in reqs], dtype=np.int32)


def _neighbours(slots: np.ndarray) -> tuple[int, int] | tuple[None, None]:
    """`slots` as a range (start, end) if they are consecutive, else (None, None)."""
    start, end = slots.item(0), slots.item(-1) + 1
    return (start, end) if slots.tolist() == list(range(start, end)) else (None, None)
