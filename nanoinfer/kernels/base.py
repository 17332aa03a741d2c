"""The interface between the model's layers and the kernels that compute their arithmetic."""

from typing import Any, Protocol

import torch


class Kernels(Protocol):
    """The operations of a decoder layer except attention, each on `T` tokens at a time.

    TorchKernels defines the results; every other implementation gives the same numbers up to rounding.
    """

    def pack(self, weight: torch.Tensor) -> Any:
        """Return `weight` [out, in] in the layout that `linear` reads fastest. Called once, after loading."""
        ...

    def linear(self, x: torch.Tensor, packed: Any, bias: torch.Tensor | None, out_features: int) -> torch.Tensor:
        """`x` [T, in] times the packed weight's transpose, plus `bias` [out] → [T, out]."""
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """`x / rms(x) * weight` over the last dimension: [..., size] → the same shape."""
        ...

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`(rms_norm(residual + x), residual + x)`, all [T, size]. May change `residual` in place."""
        ...

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Turn each pair (i, i + D/2) of `x` [T, heads, D] by its token's angle → the same shape.

        `cos` and `sin` [max_len, D/2], `positions` [T] int64. May change `x` in place.
        """
        ...

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        """`silu(gate) * up` of `x` = [gate, up] side by side: [T, 2 * size] → [T, size]."""
        ...

    def gelu_tanh_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        """`gelu(gate) * up` of `x` = [gate, up] side by side, GELU by its tanh formula: [T, 2 * size] → [T, size]."""
        ...
