"""RMSNorm."""

import torch
from torch import nn

from nanoinfer.model.kernels import Kernels, TorchKernels


class RMSNorm(nn.Module):
    """`x / rms(x) * weight` over the last dimension, with the mean square in float32 (Zhang and Sennrich, 2019)."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype, device: torch.device):
        super().__init__()
        self.eps = eps
        self.kernels: Kernels = TorchKernels()
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype, device=device), requires_grad=False)

    def use_kernels(self, kernels: Kernels, offset: float = 0.0) -> None:
        """Compute with `kernels` from now on, and add `offset` to the weight in place. Call it once, after loading.

        In float32 the results are the same as if the offset were added in every pass. In bfloat16 the sum is rounded, by at
        most 2^-9 of itself, like the norm's result.
        """
        self.kernels = kernels
        self.weight.add_(offset)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [..., size] → the same shape and dtype."""
        return self.kernels.rms_norm(x, self.weight, self.eps)

    def norm_heads(self, x: torch.Tensor) -> None:
        """Norm each head of `x` [T, heads, D] in place, if there are D weights; if heads * D, all of them together."""
        rows, heads, dim = x.shape
        size = len(self.weight)
        self.kernels.norm_heads(x.view(rows, heads * dim // size, size), self.weight, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Add a layer's output `x` to the residual stream; returns `(norm of the sum, the sum)`. May change `residual`.
        None: `x` is the stream itself."""
        if residual is None:
            return self(x), x
        return self.kernels.add_rms_norm(x, residual, self.weight, self.eps)
