"""From hidden states to logits, for the rows that need them."""

from dataclasses import dataclass

import torch

from nanoinfer.model.input_metadata import ForwardMode, InputMetadata
from nanoinfer.model.layers.linear import Linear

ROWS_AT_A_TIME = 256  # prompt log-probabilities: bounds the [rows, V] block in memory


@dataclass
class LogitsOutput:
    """`logits` [B, V] of each request's last token; with `return_normalized_logprob` also `prompt_logprobs` [T] float32.

    `prompt_logprobs[t]` is the log-probability of new token t under the token before it: NaN for the first new token of
    each request. `normalized_logprobs` [B] float32 is their mean per request: NaN where only one token is new.
    """

    logits: torch.Tensor
    prompt_logprobs: torch.Tensor | None = None
    normalized_logprobs: torch.Tensor | None = None


def logit_rows(metadata: InputMetadata) -> torch.Tensor | None:
    """The rows [k] of the pass whose hidden states are needed to the end; None for all."""
    if metadata.forward_mode is ForwardMode.DECODE or metadata.return_normalized_logprob:
        return None
    return metadata.qo_indptr[1:] - 1


def process_logits(
    hidden: torch.Tensor, input_ids: torch.Tensor, lm_head: Linear, metadata: InputMetadata
) -> LogitsOutput:
    """`hidden` [k, hidden_size] of the `logit_rows` after the last norm, `input_ids` [T] → LogitsOutput."""
    if not metadata.return_normalized_logprob:
        return LogitsOutput(lm_head(hidden))

    logits = lm_head(hidden[metadata.qo_indptr[1:] - 1])
    logprobs = torch.full(input_ids.shape, torch.nan, dtype=torch.float32, device=hidden.device)
    for start in range(0, len(input_ids) - 1, ROWS_AT_A_TIME):
        rows = slice(start, min(start + ROWS_AT_A_TIME, len(input_ids) - 1))
        following = slice(rows.start + 1, rows.stop + 1)
        block = lm_head(hidden[rows]).float().log_softmax(-1)
        logprobs[following] = block.gather(1, input_ids[following, None])[:, 0]
    logprobs[metadata.qo_indptr[:-1]] = torch.nan  # the token before it belongs to another request, or to the prefix
    new_lens = metadata.qo_indptr.diff().tolist()
    means = torch.stack([part[1:].mean() for part in logprobs.split(new_lens)])
    return LogitsOutput(logits, logprobs, means)
