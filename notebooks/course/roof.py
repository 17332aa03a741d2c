"""The two limits of a pass on this machine, measured apart: reading memory, and multiplying."""

from time import perf_counter
from timeit import repeat
from typing import Any

import torch

from nanoinfer.model.loader import LoadedModel


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
