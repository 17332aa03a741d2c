"""The same on an H100 with an 8B model: what a pass must at least take, by data sheets and arithmetic.

A pass reads all weights and the K/V of its requests once, and multiplies every weight by every token. It takes at least the
longer of the two. Schedulers, launches, and kernels that stay below the peak come on top.

`pass_flop`, `bytes_per_second` and `flop_per_second` are for the same picture of a model on this machine, measured.
"""

from dataclasses import dataclass
from time import perf_counter
from timeit import repeat
from typing import Any

import torch

from nanoinfer.model.loader import LoadedModel


@dataclass(frozen=True)
class Device:
    """`memory` in bytes, `bandwidth` in bytes per second, `compute` in floating-point operations per second."""

    name: str
    memory: float
    bandwidth: float
    compute: float


@dataclass(frozen=True)
class ModelShape:
    """What counts for memory and time. `value_bytes`: of one weight and of one value of K/V."""

    name: str
    parameters: float
    num_layers: int
    num_kv_heads: int
    head_dim: int
    value_bytes: int = 2

    @property
    def weight_bytes(self) -> float:
        return self.parameters * self.value_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.value_bytes

    def pass_seconds(self, device: Device, tokens: float, context: float = 0) -> float:
        """A pass of `tokens` new tokens in all, whose attention reads the K/V of `context` tokens in all."""
        read = self.weight_bytes + context * self.kv_bytes_per_token
        return max(read / device.bandwidth, 2 * self.parameters * tokens / device.compute)


H100 = Device("H100 SXM", 80e9, 3.35e12, 989e12)  # NVIDIA's data sheet; compute in bfloat16 without sparsity
LLAMA_8B = ModelShape("Llama 3.1 8B", 8.03e9, 32, 8, 128)


def pass_flop(model: LoadedModel, tokens: int) -> int:
    """Floating-point operations of the products with weights in one pass over so many tokens of one request."""
    c = model.config
    # What follows attention in the last layer, and the logits, are computed for a pass's last token only.
    last_token_only = c.hidden_size * (c.num_attention_heads * c.head_dim + 3 * c.intermediate_size + c.vocab_size)
    return 2 * (tokens * (model.model.num_parameters - last_token_only) + last_token_only)


def bytes_per_second() -> float:
    """How fast memory is read: numbers that no cache of the processor holds are added up."""
    numbers = torch.ones(2**26)  # 2**28 bytes
    return 2**28 / min(repeat(numbers.sum, number=1, repeat=7))


def flop_per_second(model: LoadedModel) -> float:
    """How fast one large matrix product is, by the same code as the model's."""
    layer: Any = model.model.get_submodule("model.layers.0.mlp.down_proj")
    x, times = torch.randn(128, model.config.intermediate_size), list[float]()
    for _ in range(20):
        start = perf_counter()
        layer(x)
        times.append(perf_counter() - start)
    return 2 * x.numel() * int(layer.out_features) / min(times)
