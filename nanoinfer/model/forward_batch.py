"""ForwardBatch: what one pass computes, as the scheduler plans it. One record, which travels whole to every layer."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import numpy as np
import torch


class ForwardMode(Enum):
    """EXTEND computes the new tokens of sequences, whose prefix may have K/V already. DECODE computes one token of each.
    VERIFY computes the newest token of each and drafts of those to come; ModelRunner makes a DECODE of it (verify.py)."""

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
    | `adapter_places` | [B] int32 | where each request's adapter is in the AdapterPool, −1 for none; None if none has one |
    | `only_likeliest` | bool | nothing is wanted of the logits but which token is the likeliest |
    | `wants_prompt_logprobs` | bool | EXTEND: each new token's log-probability given those before it is wanted, too |
    | `prompt_top_counts` | [B] or None | and so many likeliest tokens at each position |
    | `size_varies` | bool | captured passes: B changes from pass to pass, so one for exactly this B would seldom be used |
    """

    forward_mode: ForwardMode
    input_ids: torch.Tensor = UNSET
    req_pool_indices: torch.Tensor
    seq_lens: torch.Tensor
    prefix_lens: torch.Tensor | None = None
    out_cache_loc: torch.Tensor
    adapter_places: np.ndarray | None = None
    only_likeliest: bool = False
    wants_prompt_logprobs: bool = False
    prompt_top_counts: Sequence[int] | None = None
    size_varies: bool = False

    @property
    def new_lens(self) -> torch.Tensor:
        """How many new tokens each request has, int32 [B]."""
        return torch.ones_like(self.seq_lens) if self.prefix_lens is None else self.seq_lens - self.prefix_lens
