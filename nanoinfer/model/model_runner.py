"""ModelRunner: the two forward passes, over one model and one pair of pools."""

from typing import Protocol

import torch

from nanoinfer.cache.indices import Indices
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.model.attention import AttentionBackend
from nanoinfer.model.input_metadata import ForwardMode, InputMetadata
from nanoinfer.model.layers.logits_processor import LogitsOutput


class Model(Protocol):
    """What the runner needs of a model."""

    def __call__(
        self, input_ids: torch.Tensor, positions: torch.Tensor, input_metadata: InputMetadata
    ) -> LogitsOutput: ...


class Pass(Protocol):
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

    For both passes: `input_ids` [T] token ids, `req_pool_indices` and `seq_lens` [B], `out_cache_loc` [T], as InputMetadata
    describes; rows of `req_to_token` name the slots of the tokens before. K/V of the new tokens is written to
    `out_cache_loc`, which the caller writes into the rows too, for later passes.
    ValueError from `InputMetadata.create` before anything is written.
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
        output = self._extend(
            input_ids, req_pool_indices, seq_lens, prefix_lens, out_cache_loc, None, None, return_normalized_logprob
        )
        return output.logits, output.normalized_logprobs

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
        metadata = InputMetadata.create(
            self,
            self.tp_size,
            ForwardMode.DECODE,
            req_pool_indices,
            seq_lens,
            prefix_lens,
            out_cache_loc,
            out_cache_cont_start,
            out_cache_cont_end,
        )
        return self._run(input_ids, metadata).logits

    def forward(
        self, batch: Pass, forward_mode: ForwardMode, return_normalized_logprob: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`forward_extend` or `forward_decode` of a Batch, as `forward_mode` says: logits `[B, V]` and, where asked for,
        normalized log-probabilities `[B]`.

        An EXTEND with `return_normalized_logprob` also leaves the single log-probabilities in `batch.prompt_logprobs`.
        """
        where = (batch.input_ids, batch.req_pool_indices, batch.seq_lens)
        contiguous = (batch.out_cache_cont_start, batch.out_cache_cont_end)
        if forward_mode is ForwardMode.DECODE:
            return self.forward_decode(*where, batch.prefix_lens, batch.out_cache_loc, *contiguous), None
        assert batch.prefix_lens is not None
        output = self._extend(*where, batch.prefix_lens, batch.out_cache_loc, *contiguous, return_normalized_logprob)
        batch.prompt_logprobs = output.prompt_logprobs
        return output.logits, output.normalized_logprobs

    def _extend(
        self,
        input_ids: torch.Tensor,
        req_pool_indices: Indices,
        seq_lens: Indices,
        prefix_lens: Indices,
        out_cache_loc: Indices,
        out_cache_cont_start: int | None,
        out_cache_cont_end: int | None,
        return_normalized_logprob: bool,
    ) -> LogitsOutput:
        metadata = InputMetadata.create(
            self,
            self.tp_size,
            ForwardMode.EXTEND,
            req_pool_indices,
            seq_lens,
            prefix_lens,
            out_cache_loc,
            out_cache_cont_start,
            out_cache_cont_end,
            return_normalized_logprob,
        )
        return self._run(input_ids, metadata)

    @torch.no_grad()
    def _run(self, input_ids: torch.Tensor, metadata: InputMetadata) -> LogitsOutput:
        if input_ids.shape != metadata.positions.shape:
            raise ValueError(f"input_ids: shape {list(input_ids.shape)}, must be {list(metadata.positions.shape)}")
        self.attention_backend.init_forward(metadata)
        return self.model(input_ids.to(metadata.positions.device), metadata.positions, metadata)
