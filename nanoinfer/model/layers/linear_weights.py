"""Kinds of linear weights: what a Linear keeps after loading, and how it multiplies by it.

One line adds a kind: `QUANTIZATIONS["mine"] = MyWeights`. Then `LLM(model, quantization="mine")` serves any checkpoint
with it.
"""

from typing import Protocol

import torch

from nanoinfer.kernels import Kernels
from nanoinfer.registry import QUANTIZATIONS


class LinearWeights(Protocol):
    """A Linear makes one of these from its loaded weight, with the arguments of DenseWeights. It keeps only what it needs.

    A kind that should skip some layers, such as the head, can look at `name` and return DenseWeights for them.
    """

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [T, in] → [T, out], bias included."""
        ...


class DenseWeights:
    """The checkpoint's own numbers, in the layout that the kernels read fastest.

    `weight` [out, in], `bias` [out] or None; `name`: the Linear's path in the network (`model.layers.0.mlp.down_proj`).
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, kernels: Kernels, name: str):
        self.kernels, self.bias, self.out_features = kernels, bias, len(weight)
        self.packed = kernels.pack(weight)

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """`x @ weight.T + bias`."""
        return self.kernels.linear(x, self.packed, self.bias, self.out_features)


QUANTIZATIONS[None] = DenseWeights
