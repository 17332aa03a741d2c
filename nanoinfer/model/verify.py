"""VERIFY: one pass over a request's newest token and its drafts, as a DECODE of several rows.

In a DECODE, each layer first stores the K/V of all rows and then attends. So rows of the same request that differ in their
length see each other: row `j` is the request with `j` drafts, and attends to the drafts before. Nothing else is needed, no
kernel and no attention of its own. Where a row's bits do not depend on the other rows, as with the kernels in C++, a
draft's logits have the bits that its own DECODE would give.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nanoinfer.model.layers.prompt_likeliest import Likely


@dataclass
class DecodeRows:
    """A DECODE of `T` rows, several of which may belong to one request. Fields as in Batch, with T for B."""

    input_ids: torch.Tensor
    req_pool_indices: torch.Tensor
    seq_lens: torch.Tensor
    out_cache_loc: torch.Tensor
    out_cache_cont_start: int | None = None
    out_cache_cont_end: int | None = None
    adapter_places: np.ndarray | None = None
    only_likeliest: bool = False
    prefix_lens: torch.Tensor | None = None
    prompt_top_counts: Sequence[int] | None = None
    prompt_logprobs: torch.Tensor | None = None
    prompt_likeliest: Sequence[list[Likely] | None] | None = None


def as_decode(batch: Any) -> DecodeRows:
    """The VERIFY pass `batch` of B requests and T new tokens, with a row for each of its tokens."""
    rows: list[int] = []  # lists: for a few rows, numpy takes several times as long
    lens: list[int] = []
    of_each = []
    fields = (batch.req_pool_indices, batch.prefix_lens, batch.seq_lens)
    for row, start, end in zip(*(field.tolist() for field in fields), strict=True):
        of_each.append(end - start)
        rows += [row] * (end - start)
        lens += range(start + 1, end + 1)
    return DecodeRows(
        batch.input_ids,
        torch.from_numpy(np.array(rows, dtype=np.int32)),
        torch.from_numpy(np.array(lens, dtype=np.int32)),
        batch.out_cache_loc,
        batch.out_cache_cont_start,
        batch.out_cache_cont_end,
        None if batch.adapter_places is None else batch.adapter_places.repeat(of_each),
        batch.only_likeliest,
    )
