"""ForwardBatch: what one pass computes, as the scheduler plans it. One record, which travels whole to every layer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

import numpy as np
import torch


class ForwardMode(Enum):
    """EXTEND computes the new tokens of sequences, whose prefix may have K/V already. DECODE computes one token of each.
    VERIFY computes the newest token of each and drafts of those to come; ModelRunner makes a DECODE of it."""

    EXTEND = auto()
    DECODE = auto()
    VERIFY = auto()


UNSET: Any = None  # the value of a field that is not known yet


@dataclass(frozen=True, eq=False, kw_only=True)
class ForwardBatch:
    """`T` new tokens of `B` requests. The tensors are on the host.

    The scheduler makes it (as a Batch, which also knows the requests), and InputMetadata, which every layer is given, has
    it as its `batch`. So a field that is added here and filled in there is known everywhere.

    | field | shape, dtype | meaning |
    |---|---|---|
    | `forward_mode` | ForwardMode | |
    | `input_ids` | [T] int64 | the new tokens, request by request |
    | `req_pool_indices` | [B] int32 | the requests' rows in `req_to_token` |
    | `seq_lens` | [B] int32 | tokens in each sequence after this pass |
    | `prefix_lens` | [B] int32 | how many of them are before this pass; None in DECODE, where it is all but one |
    | `out_cache_loc` | [T] int32 | the slot that each new token's K/V goes to |
    | `adapter_slots` | [B] int32 | where each request's adapter is in the AdapterPool, −1 for none; None if none has one |
    | `only_likeliest` | bool | nothing is wanted of the logits but which token is the likeliest |
    | `wants_prompt_logprobs` | bool | EXTEND: each new token's log-probability given those before it is wanted, too |
    | `prompt_top_counts` | [B] or None | and so many likeliest tokens at each position |
    | `size_varies` | bool | captured graphs: B changes from pass to pass, so one for exactly this B would seldom be used |
    """

    forward_mode: ForwardMode
    input_ids: torch.Tensor = UNSET
    req_pool_indices: torch.Tensor
    seq_lens: torch.Tensor
    prefix_lens: torch.Tensor | None = None
    out_cache_loc: torch.Tensor
    adapter_slots: np.ndarray | None = None
    only_likeliest: bool = False
    wants_prompt_logprobs: bool = False
    prompt_top_counts: Sequence[int] | None = None
    size_varies: bool = False

    @property
    def new_lens(self) -> torch.Tensor:
        """How many new tokens each request has, int32 [B]."""
        return torch.ones_like(self.seq_lens) if self.prefix_lens is None else self.seq_lens - self.prefix_lens


def expand_verify(batch: ForwardBatch) -> ForwardBatch:
    """The VERIFY pass `batch` of B requests and T new tokens as a DECODE of T requests, one for each of these tokens.

    In a DECODE, each layer first stores all new K/V and then attends. So if a request is given several times, with
    different lengths, each of its tokens sees those before it: the one with `j` drafts before it attends to these drafts.
    Nothing else is needed, no kernel and no attention of its own. Where the bits of a token do not depend on the others in
    the pass, as with the kernels in C++, a draft's logits have the bits that its own DECODE would give.
    """
    assert batch.prefix_lens is not None
    rows: list[int] = []  # lists: for a few numbers, numpy takes several times as long
    seq_lens: list[int] = []
    new_lens = []
    fields = (batch.req_pool_indices, batch.prefix_lens, batch.seq_lens)
    for row, start, end in zip(*(field.tolist() for field in fields), strict=True):
        new_lens.append(end - start)
        rows += [row] * (end - start)
        seq_lens += range(start + 1, end + 1)
    return replace(
        batch,
        forward_mode=ForwardMode.DECODE,
        req_pool_indices=torch.from_numpy(np.array(rows, dtype=np.int32)),
        seq_lens=torch.from_numpy(np.array(seq_lens, dtype=np.int32)),
        prefix_lens=None,
        adapter_slots=None if batch.adapter_slots is None else batch.adapter_slots.repeat(new_lens),
        size_varies=True,
    )
