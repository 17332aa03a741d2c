"""TorchKernels: plain torch, on any device. The reference that the other kernels are tested against."""

from typing import Any

import torch
from torch.nn.functional import gelu, linear, silu


class TorchKernels:
    """One torch operation after another, as the formulas are written."""

    def pack(self, weight: torch.Tensor) -> Any:
        """The weight itself."""
        return weight

    def linear(self, x: torch.Tensor, packed: Any, bias: torch.Tensor | None, out_features: int) -> torch.Tensor:
        """`x @ weight.T + bias`."""
        return linear(x, packed, bias)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """The mean square in float32, the result rounded before it is multiplied by the weight, as in Hugging Face."""
        x32 = x.float()
        x32 = x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps)
        return weight * x32.to(x.dtype)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum, then its norm."""
        residual = residual + x
        return self.rms_norm(residual, weight, eps), residual

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """The two halves of every head as the two coordinates of a plane."""
        c, s = cos[positions, None], sin[positions, None]  # [T, 1, D/2], the same for every head
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * c - second * s, second * c + first * s), dim=-1)

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        """Two operations on the two halves."""
        gate, up = x.chunk(2, dim=-1)
        return silu(gate) * up

    def gelu_tanh_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        """Two operations on the two halves."""
        gate, up = x.chunk(2, dim=-1)
        return gelu(gate, approximate="tanh") * up
