"""Computes logits from hidden states, for the rows that need them (SGLang's LogitsProcessor).

The functions that change a request's logits are elsewhere, in sampling/logits_processors.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.layers.prompt_likeliest import Likely, PromptLikeliest

Head = Callable[[torch.Tensor], torch.Tensor]  # hidden states [k, hidden_size] → logits [k, V]

ROWS_AT_A_TIME = 256  # for prompt log-probabilities: keeps the [rows, V] block in memory small


class Likeliest(NamedTuple):
    """The likeliest token of each row, int64 [k], and its logit, float [k]: all that a greedy request needs."""

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


def hidden_rows(metadata: InputMetadata) -> torch.Tensor | None:
    """The new tokens whose hidden states the last layer must compute to its end; None for all."""
    return None if metadata.return_normalized_logprob else metadata.logit_rows


def compute_logits(hidden: torch.Tensor, input_ids: torch.Tensor, head: Head, metadata: InputMetadata) -> LogitsOutput:
    """`hidden` [k, hidden_size], the `hidden_rows` after the last norm, and `input_ids` [T] → LogitsOutput.

    What a family does to its logits (a scale, a softcap) belongs in `head`, so that prompt log-probabilities see it, too.
    """
    if metadata.only_likeliest and (found := getattr(head, "likeliest", lambda _: None)(hidden)) is not None:
        return LogitsOutput(found[1], likeliest=Likeliest(*found))
    if not metadata.return_normalized_logprob:
        return LogitsOutput(head(hidden))

    logits = head(hidden if metadata.logit_rows is None else hidden[metadata.logit_rows])
    logprobs = torch.full(input_ids.shape, torch.nan, dtype=torch.float32, device=hidden.device)
    counts = metadata.prompt_top_counts
    likeliest = None if counts is None else PromptLikeliest(counts, metadata.qo_indptr.tolist())
    for start in range(0, len(input_ids) - 1, ROWS_AT_A_TIME):
        rows = slice(start, min(start + ROWS_AT_A_TIME, len(input_ids) - 1))
        following = slice(rows.start + 1, rows.stop + 1)
        block = head(hidden[rows]).float().log_softmax(-1)
        logprobs[following] = block.gather(1, input_ids[following, None])[:, 0]
        if likeliest is not None:
            likeliest.add(start, block)
    logprobs[metadata.qo_indptr[:-1]] = torch.nan  # the token before it is in another request, or in the prefix
    return LogitsOutput(logits, logprobs, None if likeliest is None else likeliest.found)


def mean_logprobs(output: LogitsOutput, metadata: InputMetadata) -> torch.Tensor | None:
    """The mean of each request's `prompt_logprobs`, float32 [B]: what the seed calls normalized log-probabilities. NaN for
    a request with a single new token; None in place of all of them if they are not wanted."""
    if output.prompt_logprobs is None:
        return None
    new_lens = metadata.qo_indptr.diff().tolist()
    return torch.stack([logprobs[1:].mean() for logprobs in output.prompt_logprobs.split(new_lens)])
