"""VERIFY: one pass over a request's newest token and its drafts, as a DECODE in which the request occurs several times.

In a DECODE, each layer first stores all new K/V and then attends. So if a request is given several times, with different
lengths, each of its tokens sees those before it: the one with `j` drafts before it attends to these drafts. Nothing else is
needed, no kernel and no attention of its own. Where the bits of a token do not depend on the others in the pass, as with
the kernels in C++, a draft's logits have the bits that its own DECODE would give.
"""

from dataclasses import replace

import numpy as np
import torch

from nanoinfer.model.forward_batch import ForwardBatch, ForwardMode


def as_decode(batch: ForwardBatch) -> ForwardBatch:
    """The VERIFY pass `batch` of B requests and T new tokens as a DECODE of T requests, one for each of these tokens."""
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
        adapter_places=None if batch.adapter_places is None else batch.adapter_places.repeat(new_lens),
        size_varies=True,
    )
