"""Computes logits from hidden states, for the tokens that need them (SGLang's LogitsProcessor); and the log-probabilities
of a pass's prompt tokens.

The functions that change a request's logits are elsewhere, in sampling/logits_processors.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

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


class Likeliest(NamedTuple):
    """The likeliest token of each row of logits, int64 [k], and its logit, float [k]: all that a greedy request needs."""

    token_ids: torch.Tensor
    logits: torch.Tensor


@dataclass
class LogitsOutput:
    """`logits` [k, V] of the pass's `logit_rows` and, if they are wanted, `prompt_logprobs` [T] float32.

    With `likeliest`, there are no others: `logits` [k] are its logits.

    `prompt_logprobs[t]` is the log-probability of new token t given the tokens before it. It is NaN for the first new
    token of each request.

    `prompt_likeliest`, with `prompt_top_counts`: per request, one Likely for each new token but the first, for which the
    pass before found it; None for a request that wants none.
    """

    logits: torch.Tensor
    prompt_logprobs: torch.Tensor | None = None
    prompt_likeliest: Sequence[list[Likely] | None] | None = None
    likeliest: Likeliest | None = None

    @property
    def to_sample(self) -> torch.Tensor | Likeliest:
        """What a Sampler chooses tokens from."""
        return self.logits if self.likeliest is None else self.likeliest

    def first(self, count: int) -> "LogitsOutput":
        """This, with the first `count` rows of logits only."""
        if count == len(self.logits):  # even a slice of everything takes torch as long as a small kernel
            return self
        likeliest = None if self.likeliest is None else Likeliest(*(tensor[:count] for tensor in self.likeliest))
        return replace(self, logits=self.logits[:count], likeliest=likeliest)


def hidden_rows(metadata: InputMetadata) -> torch.Tensor | None:
    """The new tokens whose hidden states the last layer must compute to its end; None for all."""
    return None if metadata.return_normalized_logprob else metadata.logit_rows


def compute_logits(hidden: torch.Tensor, input_ids: torch.Tensor, head: Head, metadata: InputMetadata) -> LogitsOutput:
    """`hidden` [k, hidden_size], the `hidden_rows` after the last norm, and `input_ids` [T] → LogitsOutput.

    What a family does to its logits (a scale, a softcap) belongs in `head`, so that prompt log-probabilities see it, too.
    """
    if metadata.only_likeliest and (best := getattr(head, "likeliest", lambda _: None)(hidden)) is not None:
        return LogitsOutput(best[1], likeliest=Likeliest(*best))
    if not metadata.return_normalized_logprob:
        return LogitsOutput(head(hidden))

    logits = head(hidden if metadata.logit_rows is None else hidden[metadata.logit_rows])
    return LogitsOutput(logits, *prompt_logprobs(hidden, input_ids, head, metadata))
