"""ModelRunner: runs passes of one model over one pair of pools."""

from collections.abc import Callable
from typing import Any

import torch

from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.model.attention import AttentionBackend
from nanoinfer.model.eager_runner import EagerRunner
from nanoinfer.model.forward_batch import ForwardBatch, ForwardMode, expand_verify
from nanoinfer.model.graph_runner import GraphRunner
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.layers.logits_processor import LogitsOutput

# What the runner needs from a model: a function of input_ids [T], positions [T] and the pass's description → logits.
Model = Callable[[torch.Tensor, torch.Tensor, InputMetadata], LogitsOutput]


class ModelRunner(EagerRunner):
    """Runs `model` over the tokens in the pools. It keeps no state between passes: all state is in the pools.

    Every pass takes `input_ids` [T], `req_pool_indices` and `seq_lens` [B], and `out_cache_loc` [T], as InputMetadata
    describes them. Rows of `req_to_token` name the slots of the tokens before. K/V of the new tokens is written to the
    slots `out_cache_loc`; the caller also has to write these into the rows, for later passes.

    `forward_batch` takes what the engine's scheduler plans. `forward_extend` and `forward_decode` take arguments made by
    hand, and check them (eager_runner.py).
    """

    def __init__(
        self,
        model: Model,
        req_to_token_pool: ReqToTokenPool,
        token_to_kv_pool: TokenToKVPool,
        attention_backend: AttentionBackend,
    ):
        self.model, self.attention_backend = model, attention_backend
        self.req_to_token_pool, self.token_to_kv_pool = req_to_token_pool, token_to_kv_pool
        self.captured: GraphRunner | None = None  # set it to replay decode passes
        self.adapters: Any = None  # an AdapterPool, for batches with `adapter_slots`

    @property
    def broken(self) -> BaseException | None:
        """Why no pass can be made any more, with which an engine ends; None while passes can be made."""
        return None

    def forward_batch(self, batch: ForwardBatch) -> LogitsOutput:
        """Compute what the scheduler has planned: logits `[B, V]`, for a VERIFY `[T, V]`, and what else `batch` asks for.

        A captured graph may find `likeliest` only, if `batch.only_likeliest`. The next one overwrites its result.
        """
        if batch.forward_mode is ForwardMode.VERIFY:
            batch = expand_verify(batch)
        if batch.forward_mode is ForwardMode.DECODE and self.captured is not None:
            output = self.captured.forward(batch)
            if output is not None:
                return output
        return self.run(batch.input_ids, InputMetadata.of(self, batch))

    @torch.no_grad()
    def run(self, input_ids: torch.Tensor, metadata: InputMetadata) -> LogitsOutput:
        """Run the model on `input_ids` [T]. Every pass comes through here: the engine's, a session's, forward_tensor's."""
        self.attention_backend.init_forward(metadata)
        return self.model(input_ids.to(metadata.positions.device), metadata.positions, metadata)

    def close(self) -> None:
        """Give back what passes need beside memory, such as other processes. No pass may be made after that."""
