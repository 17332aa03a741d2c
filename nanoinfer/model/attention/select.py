"""Which attention backend an engine uses: the one asked for, or the fastest there is."""

import logging

import torch

from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.model.attention.base import AttentionBackend
from nanoinfer.model.attention.torch_native import TorchNativeBackend
from nanoinfer.registry import ATTENTION_BACKENDS

logger = logging.getLogger(__name__)


def select_attention_backend(
    name: str, dtype: torch.dtype, device: torch.device, kv_in_place: bool = True
) -> AttentionBackend:
    """`cpp` or `torch_native` as asked for; `auto`: `cpp` where it can be used for `dtype` on `device`.

    `kv_in_place`: the pool's K/V may be read where it lies (see KVStorage); the C++ kernel can do no other.
    ValueError for any other name, KernelsUnavailableError with the reason when what was asked for cannot be used.
    """
    ATTENTION_BACKENDS.check(name)
    if not kv_in_place and name == "cpp":
        raise KernelsUnavailableError(
            "attention_backend='cpp': reads K/V in place, which this kv_cache_dtype does not allow; use torch_native"
        )
    if not kv_in_place and name == "auto":
        name = "torch_native"
    backend: AttentionBackend = ATTENTION_BACKENDS[name](dtype, device)
    return backend


def _torch_native(dtype: torch.dtype, device: torch.device) -> AttentionBackend:
    return TorchNativeBackend()


def _cpp(dtype: torch.dtype, device: torch.device) -> AttentionBackend:
    from nanoinfer.kernels import CppKernels
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
