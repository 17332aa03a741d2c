"""Sequences that are about to be decoded, with and without captured graphs."""

from typing import Any

import numpy as np
import torch

from nanoinfer.model.forward_batch import ForwardBatch, ForwardMode
from nanoinfer.model.graph_runner import GraphRunner
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.model_runner import ModelRunner

WIDTH, SLOTS, ROWS = 64, 900, 24  # of the pools of their runner


class Sequences:
    """Sequences of lengths below `longest` with K/V in scattered slots of a runner's pool."""

    def __init__(self, runner: ModelRunner, count: int, seed: int = 0, longest: int = 30):
        rng = np.random.default_rng(seed)
        self.runner, self.pool = runner, runner.token_to_kv_pool
        self.rows = torch.from_numpy(rng.permutation(ROWS)[:count].astype(np.int32))
        self.lens = torch.from_numpy(rng.integers(2, longest, count).astype(np.int32))
        self.lens[0] = longest
        slots = rng.permutation(SLOTS - 1).astype(np.int32)  # the last slot is nobody's
        table = runner.req_to_token_pool.req_to_token
        for i, (row, length) in enumerate(zip(self.rows.tolist(), self.lens.tolist(), strict=True)):
            table[row, :length] = torch.from_numpy(slots[i * longest : i * longest + length])
            ids = torch.from_numpy(rng.integers(3, 300, length - 1))
            runner.forward_extend(ids, [row], [length - 1], [0], table[row, : length - 1])
        self.ids = torch.from_numpy(rng.integers(3, 300, count))
        self.slots = table[self.rows.long(), self.lens.long() - 1]

    def batch(self, **more: Any) -> ForwardBatch:
        """A DECODE of them."""
        fields = {"input_ids": self.ids, "seq_lens": self.lens, "out_cache_loc": self.slots, **more}
        return ForwardBatch(forward_mode=ForwardMode.DECODE, req_pool_indices=self.rows, **fields)

    def eager(self) -> torch.Tensor:
        """Logits, computed layer by layer in Python."""
        of_each = (self.rows, self.lens, None, self.slots)
        metadata = InputMetadata.create(self.runner, 1, ForwardMode.DECODE, *of_each)
        return self.runner.run(self.ids, metadata).logits.clone()

    def captured(self, passes: GraphRunner) -> torch.Tensor:
        output = passes.forward(self.batch())
        assert output is not None, passes.reason
        return output.logits.clone()

    def kv(self) -> list[torch.Tensor]:
        layers = range(len(self.pool.kv_storage.key_buffers))
        return [
            buffer(layer).clone()
            for layer in layers
            for buffer in (self.pool.get_key_buffer, self.pool.get_value_buffer)
        ]
