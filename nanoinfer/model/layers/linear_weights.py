"""Kinds of linear weights: what a Linear holds once it is loaded, and how it multiplies by it.

One line adds a kind, and any checkpoint can be served with it: `QUANTIZATIONS["mine"] = MyWeights`, then
`LLM(model, quantization="mine")`.
"""

from typing import Protocol

import torch

from nanoinfer.kernels import Kernels
from nanoinfer.registry import QUANTIZATIONS


class LinearWeights(Protocol):
    """A Linear makes one of these from its loaded weight, with the arguments of DenseWeights. It keeps what it needs.

    A kind that is not meant for some layers (the head, say) can tell by `name` and return DenseWeights for these.
    """

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [T, in] → [T, out], bias included."""
        ...


class DenseWeights:
    """The checkpoint's numbers, in the layout that the kernels read fastest.

    `weight` [out, in], `bias` [out] or None; `name`: the Linear's path in the network (`model.layers.0.mlp.down_proj`).
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, kernels: Kernels, name: str):
        self.kernels, self.bias, self.out_features = kernels, bias, len(weight)
        self.packed = kernels.pack(weight)

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """`x @ weight.T + bias`."""
        return self.kernels.linear(x, self.packed, self.bias, self.out_features)


QUANTIZATIONS[None] = DenseWeights
