"""Which kernels a model runs on: the requested ones, or the fastest available."""

import logging

import torch

from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.kernels.base import Kernels
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
    for candidate, make in (("cpp", _cpp), ("onednn", _onednn)):
        if name not in (candidate, "auto"):
            continue
        try:
            return make(dtype, device)
        except KernelsUnavailableError as error:
            if name == candidate:
                raise KernelsUnavailableError(f"kernels={name!r}: {error}") from error
            logger.info("%s kernels are not used: %s", candidate, error)
    return TorchKernels()


# Each is imported when it is asked for, not with nanoinfer.
def _cpp(dtype: torch.dtype, device: torch.device) -> Kernels:
    from nanoinfer.kernels.cpp import CppKernels

    if (reason := CppKernels.why_not(dtype, device)) is not None:
        raise KernelsUnavailableError(reason)
    return CppKernels(dtype)


def _onednn(dtype: torch.dtype, device: torch.device) -> Kernels:
    from nanoinfer.kernels.onednn import OneDNNKernels

    if (reason := OneDNNKernels.why_not(dtype, device)) is not None:
        raise KernelsUnavailableError(reason)
    return OneDNNKernels()
