"""What the quantized kinds of linear weights share: which C++ kernel multiplies by them, and where they lie for it."""

import threading
from typing import TYPE_CHECKING

import torch

from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.kernels import Kernels, selection_of
from nanoinfer.kernels.huge_pages import HugePages

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


class _Memory(threading.local):
    """Each thread that loads models has its own, so that no two of them take the same bytes."""

    def __init__(self) -> None:
        self.pages = HugePages()


_memory = _Memory()


def on_huge_pages(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of `tensor` in memory that is read fast from front to back."""
    return _memory.pages.copy(tensor)
