"""Kernels: interchangeable implementations of the model's arithmetic, except attention.

`select_kernels` imports those in C++ (model/kernels/cpp.py) only when a model asks for them.
"""

from nanoinfer.model.kernels.base import Kernels
from nanoinfer.model.kernels.select import KERNELS, Selection, select_kernels, selection_of
from nanoinfer.model.kernels.torch_native import TorchKernels

__all__ = ["KERNELS", "Kernels", "Selection", "TorchKernels", "select_kernels", "selection_of"]
