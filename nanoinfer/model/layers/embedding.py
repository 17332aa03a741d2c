"""Embedding: from token ids to vectors."""

import torch
from torch import nn

from nanoinfer.kernels import Kernels, TorchKernels


class Embedding(nn.Module):
    """`weight` [V, size], which the weight loader fills: a row per token."""

    def __init__(self, num_tokens: int, size: int, dtype: torch.dtype, device: torch.device):
        super().__init__()
        self.kernels: Kernels = TorchKernels()
        table = torch.empty(num_tokens, size, dtype=dtype, device=device)
        self.weight = nn.Parameter(table, requires_grad=False)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """`input_ids` [T] int64 → [T, size]. IndexError for an id outside the table."""
        return self.kernels.embed(self.weight, input_ids)
