"""Kernels: the model's arithmetic apart from attention, in interchangeable implementations."""

from nanoinfer.kernels.base import Kernels
from nanoinfer.kernels.cpp import CppKernels
from nanoinfer.kernels.onednn import OneDNNKernels
from nanoinfer.kernels.select import KERNELS, select_kernels
from nanoinfer.kernels.torch_native import TorchKernels

__all__ = ["KERNELS", "CppKernels", "Kernels", "OneDNNKernels", "TorchKernels", "select_kernels"]
