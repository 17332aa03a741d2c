"""Linear layers, alone and fused: one matrix product where a checkpoint has several on the same input."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import linear


class Linear(nn.Module):
    """`x @ weight.T + bias`, without gradients; weights are filled in by the weight loader."""

    def __init__(self, in_features: int, out_features: int, bias: bool, dtype: torch.dtype, device: torch.device):
        super().__init__()
        self.weight = nn.Parameter(
            torch.empty(out_features, in_features, dtype=dtype, device=device), requires_grad=False
        )
        self.bias = (
            nn.Parameter(torch.empty(out_features, dtype=dtype, device=device), requires_grad=False) if bias else None
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [T, in_features] → [T, out_features]."""
        return linear(x, self.weight, self.bias)


class FusedLinear(Linear):
    """Several projections of one input as a single matrix, their outputs side by side.

    `parts` maps each projection's name in the checkpoint to its output size; the loader fills the rows in that order.
    """

    def __init__(self, in_features: int, parts: dict[str, int], bias: bool, dtype: torch.dtype, device: torch.device):
        super().__init__(in_features, sum(parts.values()), bias, dtype, device)
        self.parts = parts

    def split(self, x: torch.Tensor) -> Sequence[torch.Tensor]:
        """The projections' outputs, views of `forward(x)`."""
        return self(x).split(list(self.parts.values()), dim=-1)
