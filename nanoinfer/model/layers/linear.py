"""Linear layers, alone and fused: one matrix product where a checkpoint has several on the same input."""

import torch
from torch import nn

from nanoinfer.kernels import Kernels
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.layers.linear_weights import LinearWeights
from nanoinfer.registry import QUANTIZATIONS


class Linear(nn.Module):
    """`x @ weight.T + bias`, without gradients.

    The weight loader fills `weight` [out, in]; `pack` then makes `weights` of it, which multiply from then on.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool, dtype: torch.dtype, device: torch.device):
        super().__init__()
        self.out_features = out_features
        self.weight: nn.Parameter | None = nn.Parameter(
            torch.empty(out_features, in_features, dtype=dtype, device=device), requires_grad=False
        )
        self.bias = (
            nn.Parameter(torch.empty(out_features, dtype=dtype, device=device), requires_grad=False) if bias else None
        )
        self.weights: LinearWeights | None = None

    def pack(self, kernels: Kernels, quantization: str | None, name: str) -> None:
        """Make `weights` of the kind `quantization`, for `kernels`, and give `weight` up, so that no memory holds it twice
        (but for a tied head's, in which the embedding goes on looking tokens up). `name`: this layer's path in the network.
        """
        assert self.weight is not None, "packed already"
        bias = None if self.bias is None else self.bias.data
        self.weights, self.weight = QUANTIZATIONS[quantization](self.weight.data, bias, kernels, name), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [T, in_features] → [T, out_features]."""
        assert self.weights is not None, "not packed yet"
        return self.weights.multiply(x)


class FusedLinear(Linear):
    """Several projections of one input as a single matrix, their outputs side by side.

    `parts` maps each projection's name in the checkpoint to its output size; the loader fills the rows in that order.
    """

    def __init__(self, in_features: int, parts: dict[str, int], bias: bool, dtype: torch.dtype, device: torch.device):
        super().__init__(in_features, sum(parts.values()), bias, dtype, device)
        self.parts = parts


class LMHead(Linear):
    """Hidden states to logits, without bias: times `config.logit_scale`, then, with `config.logit_softcap` c,
    c * tanh(logit / c)."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device):
        super().__init__(config.hidden_size, config.vocab_size, False, dtype, device)
        self.scale, self.softcap = config.logit_scale, config.logit_softcap

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [k, hidden_size] → [k, V]."""
        logits = super().forward(x)
        if self.scale != 1.0:
            logits = logits * self.scale
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap
