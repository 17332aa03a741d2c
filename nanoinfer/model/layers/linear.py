"""Linear layers, alone and fused: one matrix product where a checkpoint has several on the same input."""

from typing import Any

import torch
from torch import nn

from nanoinfer.kernels import Kernels, TorchKernels


class Linear(nn.Module):
    """`x @ weight.T + bias`, without gradients.

    The weight loader fills `weight` [out, in]; `pack` then gives it the layout that the kernels read fastest.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool, dtype: torch.dtype, device: torch.device):
        super().__init__()
        self.out_features = out_features
        self.kernels: Kernels = TorchKernels()
        self.weight: nn.Parameter | None = nn.Parameter(
            torch.empty(out_features, in_features, dtype=dtype, device=device), requires_grad=False
        )
        self.bias = (
            nn.Parameter(torch.empty(out_features, dtype=dtype, device=device), requires_grad=False) if bias else None
        )
        self._packed: Any = None

    def pack(self, kernels: Kernels) -> None:
        """Use `kernels` from now on. The weight is packed for them and given up, so that no memory holds it twice (but
        for a tied head's, in which the embedding goes on looking tokens up)."""
        assert self.weight is not None, "packed already"
        self.kernels, self._packed, self.weight = kernels, kernels.pack(self.weight.data), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [T, in_features] → [T, out_features]."""
        packed = self.weight if self._packed is None else self._packed
        return self.kernels.linear(x, packed, self.bias, self.out_features)


class FusedLinear(Linear):
    """Several projections of one input as a single matrix, their outputs side by side.

    `parts` maps each projection's name in the checkpoint to its output size; the loader fills the rows in that order.
    """

    def __init__(self, in_features: int, parts: dict[str, int], bias: bool, dtype: torch.dtype, device: torch.device):
        super().__init__(in_features, sum(parts.values()), bias, dtype, device)
        self.parts = parts
