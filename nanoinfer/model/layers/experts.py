"""The linear layers of a mixture of experts: its router, and its experts, each of which multiplies rows of its own."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from nanoinfer.model.kernels import Kernels
from nanoinfer.model.kernels.base import Dispatched
from nanoinfer.model.kernels.functions import Function, Product, products_made_by
from nanoinfer.model.layers.linear import GatedLinear, Linear


class Router(Linear):
    """Its weight keeps the checkpoint's numbers, whatever happens to others: rounded, it would choose other experts."""

    def pack(self, kernels: Kernels, quantization: str | None, name: str) -> None:
        """As in Linear, but never quantized."""
        super().pack(kernels, None, name)


class Experts(nn.ModuleList):
    """Modules like MLP, of one shape. Each has its parameters under its number, as in checkpoints, but they compute
    together, in two grouped products. Adapters cannot add to them."""

    def __init__(self, experts: Sequence[Any]):
        super().__init__(experts)
        self._gate_up_proj = GroupedLinear([expert.gate_up_proj for expert in experts])
        self._down_proj = GroupedLinear([expert.down_proj for expert in experts])

    def forward(self, dispatched: Dispatched) -> torch.Tensor:
        """What each expert makes of its rows of `dispatched.x` [N, hidden] → [N, hidden]."""
        inner = self._gate_up_proj.multiply(dispatched.x, dispatched.starts)
        return self._down_proj.multiply(inner, dispatched.starts)


def called_modules(module: nn.Module) -> Iterator[nn.Module]:
    """`module` and all modules in it, except those inside Experts: nobody calls these, and there may be thousands."""
    yield module
    if not isinstance(module, Experts):
        for child in module.children():
            yield from called_modules(child)


class GroupedLinear:
    """One Linear for each expert, all of one shape, each of which multiplies its own rows ("grouped GEMM").

    If all have the same kind of weights, and that allows it, this is one C++ call (`each_expert` in moe.cpp), which a
    recorded pass can repeat with other numbers of rows, and a row's result does not depend on other rows. Otherwise, it is
    one product after another.
    """

    def __init__(self, linears: Sequence[Linear]):
        self._linears = linears
        self._each_expert: Function | None = None
        self._are_alike: bool | None = None

    def multiply(self, x: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        """`x` [N, in], of which expert e has the rows from `starts[e]` on, `starts` [E + 1] int32 → [N, out]."""
        first = self._linears[0]
        assert first.weights is not None, "not packed yet"
        if self._are_alike is None:  # a checkpoint may have some experts in few bits, and others not
            forms = [_form(linear.weights) for linear in self._linears]
            self._are_alike = all(form == forms[0] for form in forms)
        if not (self._are_alike and getattr(first.weights, "one_product", False)):
            ends = starts.tolist()
            parts = [linear(x[a:b]) for linear, a, b in zip(self._linears, ends, ends[1:], strict=False) if b > a]
            return torch.cat(parts) if parts else first(x)
        with products_made_by(lambda product, arguments: self._call(product, arguments, starts, x.itemsize)):
            y = first.weights.multiply(x)
        if isinstance(first, GatedLinear) and not getattr(first.weights, "applies_activation", False):
            y = getattr(first.kernels, first.activation)(y)
        return y

    def _call(self, product: Product, arguments: tuple[Any, ...], starts: torch.Tensor, item_size: int) -> None:
        """In place of `product` with the first expert's weights for all rows: for each expert, its own rows and weights."""
        if self._each_expert is None:
            self._each_expert = Function("each_expert", "each_expert", product.arguments)
            self._moves = self._find_moves(arguments, item_size)
        moves = self._moves.ctypes.data
        self._each_expert(product.address, starts.data_ptr(), moves, len(self._linears), len(arguments), *arguments)

    def _find_moves(self, arguments: tuple[Any, ...], item_size: int) -> np.ndarray:
        """How many bytes the pointers among the arguments move on, int64 [1 + E, arguments]: from row to row, and then from
        the first expert's weights to those of each."""
        *_, y, _, in_features, out_features = range(len(arguments))
        moves = np.zeros((1 + len(self._linears), len(arguments)), dtype=np.int64)
        moves[0, 0], moves[0, y] = arguments[in_features] * item_size, arguments[out_features] * item_size
        for name, value in vars(self._linears[0].weights).items():
            if isinstance(value, torch.Tensor) and value.data_ptr() in arguments[1:y]:
                pointers = [getattr(linear.weights, name).data_ptr() for linear in self._linears]
                moves[1:, arguments.index(value.data_ptr())] = np.subtract(pointers, value.data_ptr())
        return moves


def _form(weights: Any) -> tuple[Any, ...]:
    """What is the same if one function multiplies by all: the kind of weights, and the shapes of their tensors."""
    tensors = [(name, value.shape) for name, value in vars(weights).items() if isinstance(value, torch.Tensor)]
    return type(weights), tensors
