"""What the quantized kinds of linear weights share: which C++ kernel multiplies by them, and where they lie for it."""

from typing import TYPE_CHECKING, Any

import torch

from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.kernels import Kernels, selection_of

if TYPE_CHECKING:
    from nanoinfer.kernels.functions import Function


def cpp_function(name: str, kernels: Kernels, dtype: torch.dtype) -> "tuple[Function | None, str]":
    """The C++ function `name` for elements of `dtype`, or None and the reason why plain torch has to do its work."""
    from nanoinfer.kernels.cpp import CppKernels  # when it is needed, not with nanoinfer
    from nanoinfer.kernels.functions import function

    if not isinstance(kernels, CppKernels):
        return None, f"plain torch, since the kernels are {selection_of(kernels)}"
    try:
        return function(name, dtype), ""
    except KernelsUnavailableError as error:
        return None, f"plain torch, since {error}"


def columns() -> int:
    """How many output channels the C++ kernels compute side by side."""
    from nanoinfer.kernels.build import library

    return int(library().columns())


def on_huge_pages(tensor: torch.Tensor, kernels: Any) -> torch.Tensor:
    """A copy of `tensor` in the memory of these C++ kernels, which is read fast from front to back."""
    copy: torch.Tensor = kernels.memory.copy(tensor)
    return copy
