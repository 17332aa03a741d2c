"""ModelRunner: runs passes of one model over one pair of pools."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from nanoinfer.cache.indices import Indices
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.model.attention import AttentionBackend
from nanoinfer.model.captured_passes import CapturedPasses
from nanoinfer.model.input_metadata import ForwardMode, InputMetadata
from nanoinfer.model.layers.logits_processor import Likeliest, LogitsOutput, mean_logprobs
from nanoinfer.model.layers.prompt_likeliest import Likely
from nanoinfer.model.metadata_checks import check_input_ids
from nanoinfer.model.verify import DecodeRows, as_decode

# What the runner needs from a model: a function of input_ids [T], positions [T] and the pass's description → logits.
Model = Callable[[torch.Tensor, torch.Tensor, InputMetadata], LogitsOutput]


class ForwardBatch(Protocol):
    """The fields of a Batch that the runner reads; it sets `prompt_logprobs` and `prompt_likeliest`."""

    input_ids: torch.Tensor
    req_pool_indices: torch.Tensor
    seq_lens: torch.Tensor
    prefix_lens: torch.Tensor | None
    out_cache_loc: torch.Tensor
    out_cache_cont_start: int | None
    out_cache_cont_end: int | None
    prompt_top_counts: Sequence[int] | None
    prompt_logprobs: torch.Tensor | None
    prompt_likeliest: Sequence[list[Likely] | None] | None
    adapter_places: np.ndarray | None

    @property
    def only_likeliest(self) -> bool: ...


class ModelRunner:
    """Runs `model` over the tokens in the pools. It keeps no state between passes: all state is in the pools.

    Every pass takes `input_ids` [T], `req_pool_indices` and `seq_lens` [B], and `out_cache_loc` [T], as InputMetadata
    describes them. Rows of `req_to_token` name the slots of the tokens before. K/V of the new tokens is written to the
    slots `out_cache_loc`; the caller also has to write these into the rows, for later passes.

    `forward_extend` and `forward_decode` take arguments made by hand, and raise a ValueError that names a wrong one
    before anything is written. `forward` takes the engine's Batch, which needs no such checks.
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
        self.captured: CapturedPasses | None = None  # set it to replay decode passes
        self.adapters: Any = None  # an AdapterPool, for batches with `adapter_places`

    @property
    def broken(self) -> BaseException | None:
        """Why no pass can be made any more, with which an engine ends; None while passes can be made."""
        return None

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
        """Compute the newest token of each request (T = B). Returns logits `[B, V]`. `prefix_lens` is ignored."""
        of_each = (req_pool_indices, seq_lens, prefix_lens, out_cache_loc)
        metadata = self._checked_metadata(
            input_ids, ForwardMode.DECODE, *of_each, out_cache_cont_start, out_cache_cont_end
        )
        return self.run(input_ids, metadata).logits

    def forward(
        self, batch: ForwardBatch, forward_mode: ForwardMode, return_normalized_logprob: bool = False
    ) -> tuple[torch.Tensor | Likeliest, torch.Tensor | None]:
        """Run the pass of a Batch. Returns logits `[B, V]` and, for an EXTEND with `return_normalized_logprob`, the same
        second value as `forward_extend`; `batch.prompt_logprobs` [T] then has each token's log-probability, and
        `batch.prompt_likeliest` the likeliest tokens that `batch.prompt_top_counts` asks for (see LogitsOutput). A captured
        DECODE or VERIFY with `batch.only_likeliest` may return a Likeliest in place of the logits. VERIFY: logits `[T, V]`.
        """
        if forward_mode is ForwardMode.VERIFY:
            return self.forward(as_decode(batch), ForwardMode.DECODE)
        if forward_mode is ForwardMode.DECODE and self.captured is not None:
            inputs = (batch.input_ids, batch.req_pool_indices, batch.seq_lens, batch.out_cache_loc)
            found = self.captured.forward(
                *inputs,
                only_likeliest=batch.only_likeliest,
                adapter_places=batch.adapter_places,
                coarse=isinstance(batch, DecodeRows),
            )
            if found is not None:
                return found, None
        of_each = (batch.req_pool_indices, batch.seq_lens, batch.prefix_lens, batch.out_cache_loc)
        contiguous = (batch.out_cache_cont_start, batch.out_cache_cont_end)
        wanted = return_normalized_logprob and forward_mode is ForwardMode.EXTEND
        metadata = InputMetadata.create(
            self,
            self.tp_size,
            forward_mode,
            *of_each,
            *contiguous,
            wanted,
            adapter_places=batch.adapter_places,
            check=False,
        )
        metadata.prompt_top_counts = batch.prompt_top_counts
        output = self.run(batch.input_ids, metadata)
        batch.prompt_logprobs, batch.prompt_likeliest = output.prompt_logprobs, output.prompt_likeliest
        return output.logits, mean_logprobs(output, metadata)

    def _checked_metadata(self, input_ids: torch.Tensor, *arguments: Any) -> InputMetadata:
        """Check arguments made by hand: `input_ids` here, and the others in `InputMetadata.create`."""
        metadata = InputMetadata.create(self, self.tp_size, *arguments)
        check_input_ids(input_ids, len(metadata.positions), self.model)
        return metadata

    @torch.no_grad()
    def run(self, input_ids: torch.Tensor, metadata: InputMetadata) -> LogitsOutput:
        """Run the model on `input_ids` [T]. Every pass comes through here: the engine's, a session's, forward_tensor's."""
        self.attention_backend.init_forward(metadata)
        return self.model(input_ids.to(metadata.positions.device), metadata.positions, metadata)

    def close(self) -> None:
        """Give back what passes need beside memory, such as other processes. No pass may be made after that."""
