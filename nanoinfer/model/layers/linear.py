"""Linear layers, single and fused: a fused one computes several of a checkpoint's projections in one matrix product."""

import torch
from torch import nn

from nanoinfer.kernels import Kernels
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.layers.linear_weights import LinearWeights
from nanoinfer.registry import QUANTIZATIONS


class Linear(nn.Module):
    """`x @ weight.T + bias`, without gradients.

    The weight loader fills `weight` [out, in]. Then `pack` turns it into `weights`, which do the multiplication.
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
        """Make `weights` of the kind `quantization` for `kernels`, and drop `weight`, so that it is not in memory twice
        (except for a tied head, whose `weight` the embedding still uses). `name`: this layer's path in the network.
        """
        assert self.weight is not None, "packed already"
        bias = None if self.bias is None else self.bias.data
        self.weights, self.weight = QUANTIZATIONS[quantization](self.weight.data, bias, kernels, name), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [T, in_features] → [T, out_features]."""
        assert self.weights is not None, "not packed yet"
        return self.weights.multiply(x)


class FusedLinear(Linear):
    """Several projections of one input as a single matrix, with their outputs side by side.

    `parts` maps each projection's name in the checkpoint to its output size; the loader fills the rows in that order.
    """

    def __init__(self, in_features: int, parts: dict[str, int], bias: bool, dtype: torch.dtype, device: torch.device):
        super().__init__(in_features, sum(parts.values()), bias, dtype, device)
        self.parts = parts


class LMHead(Linear):
    """Hidden states to logits, without bias. Logits are multiplied by `config.logit_scale`; then, if there is a
    `config.logit_softcap` c, they become c * tanh(logit / c)."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device):
        super().__init__(config.hidden_size, config.vocab_size, False, dtype, device)
        self.scale, self.softcap = config.logit_scale, config.logit_softcap

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [k, hidden_size] → [k, V]."""
        logits = super().forward(x)
        if self.scale != 1.0:
            logits = logits * self.scale
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap
