"""Modules of transformers' networks that become ours: the same numbers from our kernels."""

from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from nanoinfer.model.kernels import Kernels, TorchKernels
from nanoinfer.model.layers.linear import Linear, LMHead
from nanoinfer.model.transformers_attention import now


class WrappedLinear(Linear):
    """A Linear in place of an nn.Linear, or of GPT-2's Conv1D: for inputs of any shape, and the pass tells the adapters."""

    def __init__(self, of: nn.Module):
        nn.Module.__init__(self)
        weight: torch.Tensor = of.weight.T if isinstance(of, Conv1D) else of.weight  # type: ignore[assignment]
        self.out_features, self.in_features = weight.shape
        self.weight, self.bias = nn.Parameter(weight, requires_grad=False), of.bias  # type: ignore[assignment]
        self.weights = None

    def pack(self, kernels: Kernels, quantization: str | None, name: str) -> None:
        """As in Linear. An empty `weight` stays: transformers' code may ask for its dtype."""
        assert self.weight is not None, "packed already"
        dtype = self.weight.dtype
        super().pack(kernels, quantization, name)
        del self._parameters["weight"]
        self.weight = torch.empty(0, dtype=dtype)  # type: ignore[assignment]

    def forward(self, x: torch.Tensor, adapters: Any = None) -> torch.Tensor:
        """`x` [..., in_features] → [..., out_features]."""
        metadata = None if isinstance(self, LMHead) else now.metadata
        rows = x.reshape(-1, self.in_features)
        y = Linear.forward(self, rows, None if metadata is None else metadata.adapters)
        return y.view(*x.shape[:-1], self.out_features)


class WrappedHead(WrappedLinear, LMHead):
    """An LMHead, so that no adapter adds to it. What is done to logits is done elsewhere."""

    scale, softcap = 1.0, None

    def __init__(self, of: nn.Module):
        WrappedLinear.__init__(self, of)
        self.kernels: Kernels = TorchKernels()


def adopt(network: nn.Module, whole: Any, head: nn.Module | None, kernels: Kernels, quantization: str | None) -> None:
    """Replace modules of `network` by ours, and pack their weights for `kernels`. `whole`: transformers' model, from which
    `network` has its modules. `head`: which of them computes logits."""
    for name, module in list(network.named_modules()):
        if type(module) in (nn.Linear, Conv1D):
            new = (WrappedHead if module is head else WrappedLinear)(module)
            _replace(network, whole, name, new)
    for name, module in network.named_modules():
        if isinstance(module, Linear):
            module.pack(kernels, quantization, name)


def _replace(network: nn.Module, whole: Any, name: str, new: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    setattr(network.get_submodule(parent), own, new)
    if not parent:
        setattr(whole, own, new)
