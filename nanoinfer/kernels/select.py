"""Which kernels a model runs on: the requested ones, or the fastest available."""

import logging

import torch

from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.kernels.base import Kernels
from nanoinfer.kernels.cpp import CppKernels
from nanoinfer.kernels.onednn import OneDNNKernels
from nanoinfer.kernels.torch_native import TorchKernels

KERNELS = ("auto", "cpp", "onednn", "torch")
logger = logging.getLogger(__name__)


def check_name(name: str) -> None:
    """ValueError unless `name` is one of KERNELS; for a check before a model is loaded."""
    if name not in KERNELS:
        raise ValueError(f"kernels={name!r}: must be one of {', '.join(KERNELS)}")


def select_kernels(name: str, dtype: torch.dtype, device: torch.device) -> Kernels:
    """`cpp`, `onednn` or `torch` as named; `auto`: the first of these that can be used for `dtype` on `device`.

    ValueError for any other name, KernelsUnavailableError with the reason when the named kernels cannot be used.
    """
    check_name(name)
    for candidate, why_not in (("cpp", CppKernels.why_not), ("onednn", OneDNNKernels.why_not)):
        if name not in (candidate, "auto"):
            continue
        reason = why_not(dtype, device)
        if reason is None:
            return CppKernels(dtype) if candidate == "cpp" else OneDNNKernels()
        if name == candidate:
            raise KernelsUnavailableError(f"kernels={name!r}: {reason}")
        logger.info("%s kernels are not used: %s", candidate, reason)
    return TorchKernels()
