"""Computes logits from hidden states, for the tokens that need them (SGLang's LogitsProcessor).

The functions that change a request's logits are elsewhere, in sampling/logits_processors.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.layers.prompt_logprobs import Head, Likely, prompt_logprobs


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
