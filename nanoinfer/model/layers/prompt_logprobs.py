"""prompt_logprobs: the log-probabilities of a pass's prompt tokens, and the likeliest tokens at their positions."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch

from nanoinfer.model.input_metadata import InputMetadata

Head = Callable[[torch.Tensor], torch.Tensor]  # hidden states [k, hidden_size] → logits [k, V]
Likely = dict[int, float]  # token id → log-probability, the likeliest first

ROWS_AT_A_TIME = 256  # tokens whose block of log-probabilities [n, V] is in memory at once


def prompt_logprobs(
    hidden: torch.Tensor, input_ids: torch.Tensor, head: Head, metadata: InputMetadata
) -> tuple[torch.Tensor, Sequence[list[Likely] | None] | None]:
    """`prompt_logprobs` and `prompt_likeliest` of a LogitsOutput, from `hidden` [T, hidden_size] and `input_ids` [T]."""
    logprobs = torch.full(input_ids.shape, torch.nan, dtype=torch.float32, device=hidden.device)
    counts = metadata.batch.prompt_top_counts
    likeliest = None if counts is None else PromptLikeliest(counts, metadata.qo_indptr.tolist())
    for start in range(0, len(input_ids) - 1, ROWS_AT_A_TIME):
        known = slice(start, min(start + ROWS_AT_A_TIME, len(input_ids) - 1))
        following = slice(known.start + 1, known.stop + 1)
        block = head(hidden[known]).float().log_softmax(-1)
        logprobs[following] = block.gather(1, input_ids[following, None])[:, 0]
        if likeliest is not None:
            likeliest.add(start, block)
    logprobs[metadata.qo_indptr[:-1]] = torch.nan  # the token before it is in another request, or in the prefix
    return logprobs, None if likeliest is None else likeliest.found


class PromptLikeliest:
    """Collects them block by block, so that the log-probabilities of all tokens are never in memory at once.

    `counts` [B]: how many likeliest tokens each request of the pass wants at each position. `starts` [B+1]: where each
    request's new tokens begin, and the end (`qo_indptr`).
    """

    def __init__(self, counts: Sequence[int], starts: Sequence[int]):
        # A token's log-probability is computed at the token before it, so what is computed at a request's last token
        # belongs to the next pass.
        self._spans = [(start, end - 1) for start, end in pairwise(starts)]
        self._counts = counts
        self.found: list[list[Likely] | None] = [[] if count else None for count in counts]

    def add(self, first_row: int, block: torch.Tensor) -> None:
        """Add the log-probabilities `block` [n, V] of the pass's tokens from `first_row` on; blocks must come in order."""
        for likeliest, count, (start, end) in zip(self.found, self._counts, self._spans, strict=True):
            if likeliest is not None:
                likeliest += likeliest_of(block[max(start - first_row, 0) : max(end - first_row, 0)], count)


def likeliest_of(logprobs: torch.Tensor, count: int) -> list[Likely]:
    """Of each row of `logprobs` [n, V], the `count` largest."""
    values, ids = logprobs.topk(count, dim=-1)
    return [dict(zip(*row, strict=True)) for row in zip(ids.tolist(), values.tolist(), strict=True)]
