"""PromptLikeliest: the likeliest tokens at the positions of a pass's prompt tokens."""

from collections.abc import Sequence
from itertools import pairwise

import torch

Likely = dict[int, float]  # token id → log-probability, the likeliest first


class PromptLikeliest:
    """Collects them block by block, so that the log-probabilities of all tokens are never in memory at once.

    `counts` [B]: how many likeliest tokens each request of the pass wants at each position. `starts` [B+1]: where each
    request's new tokens begin, and the end (`qo_indptr`).
    """

    def __init__(self, counts: Sequence[int], starts: Sequence[int]):
        # A token's log-probability is in the row before it, so the row of a request's last token belongs to the next pass.
        self._spans = [(start, end - 1) for start, end in pairwise(starts)]
        self._counts = counts
        self.found: list[list[Likely] | None] = [[] if count else None for count in counts]

    def add(self, first_row: int, block: torch.Tensor) -> None:
        """Add the log-probabilities `block` [n, V] of the pass's rows from `first_row` on; blocks must come in order."""
        for found, count, (start, end) in zip(self.found, self._counts, self._spans, strict=True):
            if found is not None:
                found += likeliest_of(block[max(start - first_row, 0) : max(end - first_row, 0)], count)


def likeliest_of(logprobs: torch.Tensor, count: int) -> list[Likely]:
    """Of each row of `logprobs` [n, V], the `count` largest."""
    values, ids = logprobs.topk(count, dim=-1)
    return [dict(zip(*row, strict=True)) for row in zip(ids.tolist(), values.tolist(), strict=True)]
