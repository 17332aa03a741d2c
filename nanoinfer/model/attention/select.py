"""Which attention backend an engine uses: the one asked for, or the fastest there is."""

import logging

import torch

from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.model.attention.base import AttentionBackend
from nanoinfer.model.attention.torch_native import TorchNativeBackend
from nanoinfer.registry import ATTENTION_BACKENDS

logger = logging.getLogger(__name__)


def select_attention_backend(name: str, dtype: torch.dtype, device: torch.device) -> AttentionBackend:
    """`cpp` or `torch_native` as asked for; `auto`: `cpp` where it can be used for `dtype` on `device`.

    ValueError for any other name, KernelsUnavailableError with the reason when what was asked for cannot be used.
    """
    ATTENTION_BACKENDS.check(name)
    backend: AttentionBackend = ATTENTION_BACKENDS[name](dtype, device)
    return backend


def _torch_native(dtype: torch.dtype, device: torch.device) -> AttentionBackend:
    return TorchNativeBackend()


def _cpp(dtype: torch.dtype, device: torch.device) -> AttentionBackend:
    from nanoinfer.kernels.cpp import CppKernels
    from nanoinfer.model.attention.cpp import CppAttention

    if (reason := CppKernels.why_not(dtype, device)) is not None:
        raise KernelsUnavailableError(f"attention_backend='cpp': {reason}")
    return CppAttention(dtype)


def _fastest(dtype: torch.dtype, device: torch.device) -> AttentionBackend:
    try:
        return _cpp(dtype, device)
    except KernelsUnavailableError as error:
        logger.info("cpp attention is not used: %s", str(error).partition(": ")[2])
        return TorchNativeBackend()


# A backend is made for a dtype on a device.
ATTENTION_BACKENDS.update(auto=_fastest, cpp=_cpp, torch_native=_torch_native)
