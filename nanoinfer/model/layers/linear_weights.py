"""Kinds of linear weights: what a Linear keeps after loading, and how it multiplies by it. int8_weights.py and
int4_weights.py are two more.

One line adds a kind: `QUANTIZATIONS["mine"] = MyWeights`. Then `LLM(model, quantization="mine")` serves any checkpoint
with it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch

from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.model.kernels import Kernels, selection_of
from nanoinfer.model.kernels.base import AddedToGates
from nanoinfer.registry import QUANTIZATIONS

if TYPE_CHECKING:
    from nanoinfer.model.kernels.functions import Function


class LinearWeights(Protocol):
    """A Linear makes one of these from its loaded weight, with the arguments of DenseWeights. It keeps only what it needs.

    A kind may name another one for gate and up, `gated`. That takes the activation's name as its last argument, its
    `multiply` returns what the activation makes of both, and of what adapters add to them (its second argument), and its
    attribute `applies_activation` is true (see GatedLinear).
    A kind whose attribute `one_product` is true makes one call of a Product in `multiply` (see functions.py), with pointers
    to its own tensors. All experts of such a kind are multiplied by together (see experts.py).
    A kind that should skip some layers, such as the head, can look at `name` and return DenseWeights for them.
    """

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [T, in] → [T, out], bias included."""
        ...


# What makes weights from numbers in few bits that a checkpoint has, and these, by argument: tensors [out, ...].
FewBits = tuple[Callable[..., LinearWeights], dict[str, torch.Tensor]]


class DenseWeights:
    """The checkpoint's own numbers, in the layout that the kernels read fastest.

    `weight` [out, in], `bias` [out] or None; `name`: the Linear's path in the network (`model.layers.0.mlp.down_proj`).
    """

    gated: ClassVar[Any]  # GatedDenseWeights, which is defined below

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, kernels: Kernels, name: str):
        self.kernels, self.bias, self.out_features = kernels, bias, len(weight)
        self.packed, self.one_product = kernels.pack(weight), getattr(kernels, "recordable", False)

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """`x @ weight.T + bias`."""
        return self.kernels.linear(x, self.packed, self.bias, self.out_features)

    def likeliest(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The number of each row's largest output, int64 [T], and that output, float32 [T]."""
        return self.kernels.linear_argmax(x, self.packed, self.bias, self.out_features)


class GatedDenseWeights:
    """Dense weights of gate and up, whose product never goes to memory. `activation`: an operation of Kernels.

    `multiply` and `out_features` are about what the activation makes of them.
    """

    applies_activation = True

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, kernels: Kernels, name: str, activation: str):
        self.kernels, self.bias, self.out_features = kernels, bias, len(weight) // 2
        self.activation, self.packed = activation, kernels.pack_gated(weight)
        self.one_product = getattr(kernels, "recordable", False)

    def multiply(self, x: torch.Tensor, added: AddedToGates | None = None) -> torch.Tensor:
        """`activation(gate) * up`, [T, in] → [T, out / 2]. `added`: what adapters add to gates and ups."""
        return self.kernels.gated_linear(x, self.packed, self.bias, self.out_features, self.activation, added)


DenseWeights.gated = GatedDenseWeights
QUANTIZATIONS[None] = DenseWeights


def cpp_function(name: str, kernels: Kernels) -> "tuple[Function | None, str]":
    """The C++ function `name` of these kernels, or None and the reason why plain torch has to do its work."""
    from nanoinfer.model.kernels.cpp import CppKernels  # when it is needed, not with nanoinfer
    from nanoinfer.model.kernels.functions import function

    if not isinstance(kernels, CppKernels):
        return None, f"plain torch, since the kernels are {selection_of(kernels)}"
    try:
        return function(name, kernels.dtype), ""
    except KernelsUnavailableError as error:
        return None, f"plain torch, since {error}"


def columns() -> int:
    """How many output channels the C++ kernels compute side by side."""
    from nanoinfer.model.kernels.build import library

    return int(library().columns())


def on_huge_pages(tensor: torch.Tensor, kernels: Any) -> torch.Tensor:
    """A copy of `tensor` in the memory of these C++ kernels, which is read fast from front to back."""
    copy: torch.Tensor = kernels.memory.copy(tensor)
    return copy
