"""A caller of forward_tensor: it keeps block tables in plain lists, one token at a time; and what tests call it with."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from nanoinfer.ascend.generator import GeneratorTorch

Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], Any]  # a model of transformers

PROMPTS = ([5, 6, 7, 8, 9, 10, 11], [300, 2, 17], [42], list(range(100, 121)))
FAMILIES = {
    "llama": {},
    "mistral": {"sliding_window": 5},
    "qwen2": {},
    "qwen3": {"head_dim": 24, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "gemma3": {},
    "phi3": {"sliding_window": 6},
}


def close(actual: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(actual.cpu(), wanted.cpu(), rtol=2e-4, atol=2e-4)


class Caller:
    """Owns a K/V cache and hands out its blocks in random order. `tokens[i]` are those of request i with K/V."""

    def __init__(self, generator: GeneratorTorch, num_blocks: int, block_size: int, seed: int = 0):
        self.generator, self.block_size = generator, block_size
        self.kv_cache = generator.new_kv_cache(num_blocks, block_size)
        self.free = list(range(num_blocks))
        random.Random(seed).shuffle(self.free)
        self.blocks: dict[int, list[int]] = {}
        self.tokens: dict[int, list[int]] = {}
        self.dtype = torch.int64

    def slot(self, request: int, index: int) -> int:
        """Where that token's K/V goes; takes a block when the request has none for it."""
        blocks = self.blocks.setdefault(request, [])
        while index // self.block_size >= len(blocks):
            blocks.append(self.free.pop())
        return blocks[index // self.block_size] * self.block_size + index % self.block_size

    def tables(self, requests: Sequence[int]) -> torch.Tensor:
        width = max(len(self.blocks.get(request, [])) for request in requests) + 1  # one more than anybody needs
        rows = [self.blocks.get(request, []) for request in requests]
        return torch.tensor([row + [-1] * (width - len(row)) for row in rows], dtype=self.dtype)

    def arguments(self, new: dict[int, Sequence[int]], is_prefill: bool) -> dict[str, Any]:
        """What forward_tensor wants for these new tokens of each request, and their slots."""
        positions, slots, lengths = [], [], []
        for request, tokens in new.items():
            start = len(self.tokens.get(request, []))
            positions += range(start, start + len(tokens))
            slots += [self.slot(request, start + j) for j in range(len(tokens))]
            lengths.append(start + len(tokens))
        return {
            "input_ids": torch.tensor([token for tokens in new.values() for token in tokens], dtype=self.dtype),
            "position_ids": torch.tensor(positions, dtype=self.dtype),
            "is_prefill": is_prefill,
            "kv_cache": self.kv_cache,
            "block_tables": self.tables(list(new)),
            "slots": torch.tensor(slots, dtype=self.dtype),
            "input_lengths": torch.tensor(lengths, dtype=self.dtype),
            "max_seq_len": max(lengths),
        }

    def run(self, new: dict[int, Sequence[int]], is_prefill: bool, **changes: Any) -> torch.Tensor:
        """One pass; the tokens are the requests' from then on."""
        logits = self.generator.forward_tensor(**{**self.arguments(new, is_prefill), **changes})
        for request, tokens in new.items():
            self.tokens[request] = self.tokens.get(request, []) + list(tokens)
        return logits

    def prefill(self, new: dict[int, Sequence[int]], **changes: Any) -> torch.Tensor:
        return self.run(new, True, **changes)

    def decode(self, new: dict[int, Sequence[int]], **changes: Any) -> torch.Tensor:
        return self.run(new, False, **changes)

    def snapshot(self) -> list[torch.Tensor]:
        return [tensor.clone() for pair in self.kv_cache for tensor in pair]
