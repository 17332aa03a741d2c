"""Layers with a matrix of weights: the embedding, and linear layers, single and fused. A fused one computes several of a
checkpoint's projections in one matrix product."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from nanoinfer.model.adapter_rows import AdapterRows
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.kernels import Kernels, Selection, TorchKernels
from nanoinfer.model.kernels.base import AddedToGates
from nanoinfer.model.layers import int4_weights, int8_weights  # noqa: F401  (they register their kinds)
from nanoinfer.model.layers.linear_weights import LinearWeights
from nanoinfer.registry import QUANTIZATIONS


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


class Linear(nn.Module):
    """`x @ weight.T + bias`, without gradients.

    The weight loader fills `weight` [out, in]. Then `pack` turns it into `weights`, which do the multiplication.
    """

    as_stored: Callable[..., LinearWeights] | None = None  # makes `weights` of what a checkpoint has in few bits
    num_assigned = 0  # how many times any Linear of this process has got `weights`

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "weights":  # counted afterwards: who looks in between, looks again
            Linear.num_assigned += 1

    def __init__(self, in_features: int, out_features: int, bias: bool, dtype: torch.dtype, device: torch.device):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
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
        if self.as_stored is not None:
            self.weights = self.as_stored(bias=bias, kernels=kernels, name=name)
        else:
            self.weights = QUANTIZATIONS[quantization](self.weight.data, bias, kernels, name)
        self.weight = self.as_stored = None

    def forward(self, x: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """`x` [T, in_features] → [T, out_features], with what the tokens' `adapters` add."""
        assert self.weights is not None, "not packed yet"
        y = self.weights.multiply(x)
        return y if adapters is None or self not in adapters.tables else adapters.tables[self].add(x, y, adapters)


class FusedLinear(Linear):
    """Several projections of one input as a single matrix, with their outputs side by side.

    `parts` maps each projection's name in the checkpoint to its output size; the loader fills the rows in that order.
    """

    def __init__(self, in_features: int, parts: dict[str, int], bias: bool, dtype: torch.dtype, device: torch.device):
        super().__init__(in_features, sum(parts.values()), bias, dtype, device)
        self.parts = parts


class GatedLinear(FusedLinear):
    """`activation(gate(x)) * up(x)`: two projections of one input, of which only the combination is needed.

    `activation`: an operation of Kernels. If the kind of weights has a `gated` one, that does all of it.
    """

    def __init__(
        self, in_features: int, size: int, activation: str, bias: bool, dtype: torch.dtype, device: torch.device
    ):
        super().__init__(in_features, {"gate_proj": size, "up_proj": size}, bias, dtype, device)
        self.activation = activation
        self.kernels: Kernels = TorchKernels()

    def pack(self, kernels: Kernels, quantization: str | None, name: str) -> None:
        """As in Linear."""
        gated = getattr(QUANTIZATIONS[quantization], "gated", None)
        if gated is None or self.as_stored is not None:
            super().pack(kernels, quantization, name)
        else:
            assert self.weight is not None, "packed already"
            bias = None if self.bias is None else self.bias.data
            self.weights, self.weight = gated(self.weight.data, bias, kernels, name, self.activation), None

    def forward(self, x: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """`x` [T, in_features] → [T, size]. What adapters add to gate and up comes before the activation."""
        weights: Any = self.weights
        if getattr(weights, "applies_activation", False):
            activated: torch.Tensor = weights.multiply(x, None if adapters is None else self._delta(x, adapters))
            return activated
        combined: torch.Tensor = getattr(self.kernels, self.activation)(super().forward(x, adapters))
        return combined

    def _delta(self, x: torch.Tensor, adapters: AdapterRows) -> AddedToGates | None:
        table = adapters.tables.get(self)
        return None if table is None else AddedToGates(table.delta(x, adapters), adapters.of_rows)


class LMHead(Linear):
    """Hidden states to logits, without bias. Logits are multiplied by `config.logit_scale`; then, if there is a
    `config.logit_softcap` c, they become c * tanh(logit / c)."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device, num_tokens: int | None = None):
        """`num_tokens`: how many logits it computes; None: those of all tokens."""
        super().__init__(config.hidden_size, num_tokens or config.vocab_size, False, dtype, device)
        self.scale, self.softcap = config.logit_scale, config.logit_softcap
        self.kernels: Kernels = TorchKernels()

    def likeliest(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """`x` [k, hidden_size] → each row's likeliest token, int64 [k], and its logit, float32 [k]. No others are stored.
        None when the weights or what is done to logits need all of them."""
        find = getattr(self.weights, "likeliest", None)
        return None if find is None or self.scale != 1.0 or self.softcap is not None else find(x)

    def forward(self, x: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """`x` [k, hidden_size] → [k, V]. There are no adapters for a head."""
        logits = super().forward(x)
        if self.scale != 1.0:
            logits = self.kernels.scale(logits, self.scale)
        return logits if self.softcap is None else self.kernels.softcap(logits, self.softcap)


def quantization_of(network: nn.Module) -> Selection:
    """The kind of quantized weights of `network`, and why plain torch multiplies by them, if it does. No name: none."""
    weights = (module.weights for module in network.modules() if isinstance(module, Linear))
    selections = (getattr(kept, "selection", None) for kept in weights)
    return next((selection for selection in selections if isinstance(selection, Selection)), Selection(""))


def weight_bytes(network: nn.Module) -> int:
    """The memory that `network`'s parameters and linear weights take; what is shared counts once."""
    linear = [module for module in network.modules() if isinstance(module, Linear)]
    kept = (value for module in linear for value in vars(module.weights).values())
    packed = [value for value in kept if isinstance(value, torch.Tensor)]
    tensors = (*network.parameters(), *packed)
    places = {id(tensor) if tensor.is_mkldnn else tensor.data_ptr(): tensor for tensor in tensors}
    return sum(tensor.numel() * tensor.itemsize for tensor in places.values())
