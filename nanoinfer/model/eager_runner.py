"""EagerRunner: passes with explicit arguments, by the names of nano-sglang, the small engine that this one
began with. The engine does not use them."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import torch

from nanoinfer.cache.indices import Indices
from nanoinfer.model.forward_batch import ForwardBatch, ForwardMode
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.layers.logits_processor import LogitsOutput
from nanoinfer.model.metadata_checks import check_input_ids, check_mode


class EagerRunner(ABC):
    """What a ModelRunner also has. Wrong arguments of `forward_extend` and `forward_decode` raise a ValueError that names
    one of them before anything is written."""

    tp_size = 1  # over how many processes the model is split
    model: Any

    def forward_extend(
        self,
        input_ids: torch.Tensor,
        req_pool_indices: Indices,
        seq_lens: Indices,
        prefix_lens: Indices,
        out_cache_loc: Indices,
        return_normalized_logprob: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute the tokens after each request's prefix. Returns the logits `[B, V]` of each request's last token.

        The second value is None or, with `return_normalized_logprob`, float32 `[B]`: the mean log-probability of the
        tokens computed in this pass, each given the tokens before it. The first token has none; NaN if it is the only one.
        Source: nano-sglang.
        """
        input_ids, metadata = self._checked(
            input_ids,
            ForwardMode.EXTEND,
            req_pool_indices,
            seq_lens,
            prefix_lens,
            out_cache_loc,
            return_normalized_logprob=return_normalized_logprob,
        )
        output = self.run(input_ids, metadata)
        return output.logits, mean_logprobs(output, metadata.batch)

    def forward_decode(
        self,
        input_ids: torch.Tensor,
        req_pool_indices: Indices,
        seq_lens: Indices,
        prefix_lens: Indices | None,
        out_cache_loc: Indices,
        out_cache_cont_start: int | None = None,
        out_cache_cont_end: int | None = None,
    ) -> torch.Tensor:
        """Compute the newest token of each request (T = B). Returns logits `[B, V]`. `prefix_lens` is ignored."""
        input_ids, metadata = self._checked(
            input_ids,
            ForwardMode.DECODE,
            req_pool_indices,
            seq_lens,
            None,
            out_cache_loc,
            out_cache_cont_start,
            out_cache_cont_end,
        )
        return self.run(input_ids, metadata).logits

    def forward(
        self, batch: ForwardBatch, forward_mode: ForwardMode, return_normalized_logprob: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """nano-sglang's name for `forward_batch`. Returns logits as there and, for an EXTEND with
        `return_normalized_logprob`, the same second value as `forward_extend`. ValueError when the mode does not suit
        the batch."""
        check_mode(forward_mode, batch.prefix_lens)
        if forward_mode is ForwardMode.DECODE and batch.prefix_lens is not None:
            raise ValueError("prefix_lens: must be None in DECODE, where a request has one new token")
        wanted = return_normalized_logprob and forward_mode is ForwardMode.EXTEND
        batch = replace(batch, forward_mode=forward_mode, wants_prompt_logprobs=wanted, only_likeliest=False)
        output = self.forward_batch(batch)
        return output.logits, mean_logprobs(output, batch)

    def _checked(self, input_ids: torch.Tensor, *arguments: Any, **more: Any) -> tuple[torch.Tensor, InputMetadata]:
        """Check explicit arguments: `input_ids` here, and the others in `InputMetadata.create`. Returns the ids as the
        kernels take them, int64 and side by side in memory."""
        metadata = InputMetadata.create(self, self.tp_size, *arguments, **more)
        check_input_ids(input_ids, len(metadata.positions), self.model)
        return input_ids.long().contiguous(), metadata

    @abstractmethod
    def forward_batch(self, batch: ForwardBatch) -> LogitsOutput:
        """Compute what a scheduler has planned."""

    @abstractmethod
    def run(self, input_ids: torch.Tensor, metadata: InputMetadata) -> LogitsOutput:
        """Run the model on `input_ids` [T]."""


def mean_logprobs(output: LogitsOutput, batch: ForwardBatch) -> torch.Tensor | None:
    """The mean of each request's `prompt_logprobs`, float32 [B]: what nano-sglang calls normalized log-probabilities. NaN
    for a request with a single new token; None in place of all of them if they are not wanted."""
    if output.prompt_logprobs is None:
        return None
    return torch.stack([logprobs[1:].mean() for logprobs in output.prompt_logprobs.split(batch.new_lens.tolist())])
