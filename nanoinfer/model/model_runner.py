"""ModelRunner: passes of one model over one pair of pools."""

from collections.abc import Callable
from typing import Any, Protocol

import torch

from nanoinfer.cache.indices import Indices
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.model.attention import AttentionBackend
from nanoinfer.model.input_metadata import ForwardMode, InputMetadata
from nanoinfer.model.layers.logits_processor import LogitsOutput, mean_logprobs
from nanoinfer.model.metadata_checks import check_input_ids

# What the runner needs of a model: input_ids [T], positions [T] and the pass's description → logits.
Model = Callable[[torch.Tensor, torch.Tensor, InputMetadata], LogitsOutput]


class ForwardBatch(Protocol):
    """What the runner reads of a Batch, and the one thing it leaves in it."""

    input_ids: torch.Tensor
    req_pool_indices: torch.Tensor
    seq_lens: torch.Tensor
    prefix_lens: torch.Tensor | None
    out_cache_loc: torch.Tensor
    out_cache_cont_start: int | None
    out_cache_cont_end: int | None
    prompt_logprobs: torch.Tensor | None


class ModelRunner:
    """Runs `model` over the tokens in the pools. Keeps no state between passes: all of it is in the pools.

    For every pass: `input_ids` [T] token ids, `req_pool_indices` and `seq_lens` [B], `out_cache_loc` [T], as InputMetadata
    describes; rows of `req_to_token` name the slots of the tokens before. K/V of the new tokens is written to
    `out_cache_loc`, which the caller writes into the rows too, for later passes.

    `forward_extend` and `forward_decode` are for arguments made by hand: ValueError that names one before anything is
    written. `forward` takes the engine's Batch, which needs no such checks.
    """

    tp_size = 1

    def __init__(
        self,
        model: Model,
        req_to_token_pool: ReqToTokenPool,
        token_to_kv_pool: TokenToKVPool,
        attention_backend: AttentionBackend,
    ):
        self.model, self.attention_backend = model, attention_backend
        self.req_to_token_pool, self.token_to_kv_pool = req_to_token_pool, token_to_kv_pool

    def forward_extend(
        self,
        input_ids: torch.Tensor,
        req_pool_indices: Indices,
        seq_lens: Indices,
        prefix_lens: Indices,
        out_cache_loc: Indices,
        return_normalized_logprob: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute the tokens after each request's prefix: logits `[B, V]` of each request's last token.

        The second value is None, or with `return_normalized_logprob` float32 `[B]`: the mean log-probability of the tokens
        computed in this pass, each under the token before it (so all but the first; NaN where only one is computed).
        Source: seed 002.
        """
        of_each = (req_pool_indices, seq_lens, prefix_lens, out_cache_loc)
        metadata = self._checked_metadata(
            input_ids, ForwardMode.EXTEND, *of_each, None, None, return_normalized_logprob
        )
        output = self.run(input_ids, metadata)
        return output.logits, mean_logprobs(output, metadata)

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
        """Compute the newest token of each request (T = B): logits `[B, V]`. `prefix_lens` is not looked at."""
        of_each = (req_pool_indices, seq_lens, prefix_lens, out_cache_loc)
        metadata = self._checked_metadata(
            input_ids, ForwardMode.DECODE, *of_each, out_cache_cont_start, out_cache_cont_end
        )
        return self.run(input_ids, metadata).logits

    def forward(
        self, batch: ForwardBatch, forward_mode: ForwardMode, return_normalized_logprob: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The pass of a Batch, as `forward_mode` says: logits `[B, V]` and, of an EXTEND with `return_normalized_logprob`,
        what `forward_extend` returns beside them; `batch.prompt_logprobs` [T] then holds the single log-probabilities.
        """
        of_each = (batch.req_pool_indices, batch.seq_lens, batch.prefix_lens, batch.out_cache_loc)
        contiguous = (batch.out_cache_cont_start, batch.out_cache_cont_end)
        wanted = return_normalized_logprob and forward_mode is ForwardMode.EXTEND
        metadata = InputMetadata.create(self, self.tp_size, forward_mode, *of_each, *contiguous, wanted, check=False)
        output = self.run(batch.input_ids, metadata)
        batch.prompt_logprobs = output.prompt_logprobs
        return output.logits, mean_logprobs(output, metadata)

    def _checked_metadata(self, input_ids: torch.Tensor, *arguments: Any) -> InputMetadata:
        """The door for arguments made by hand: those of `InputMetadata.create`, checked there, and `input_ids` here."""
        metadata = InputMetadata.create(self, self.tp_size, *arguments)
        check_input_ids(input_ids, len(metadata.positions), self.model)
        return metadata

    @torch.no_grad()
    def run(self, input_ids: torch.Tensor, metadata: InputMetadata) -> LogitsOutput:
        """The one way into the model, for every pass of the engine, of sessions and of forward_tensor. `input_ids` [T]."""
        self.attention_backend.init_forward(metadata)
        return self.model(input_ids.to(metadata.positions.device), metadata.positions, metadata)
