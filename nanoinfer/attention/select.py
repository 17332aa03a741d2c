"""Which attention backend an engine uses: the one asked for, or the fastest there is."""

import logging

import torch

from nanoinfer.attention.base import AttentionBackend
from nanoinfer.attention.cpp import CppAttention
from nanoinfer.attention.torch_native import TorchNativeBackend
from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.kernels import CppKernels

ATTENTION_BACKENDS = ("auto", "cpp", "torch_native")
logger = logging.getLogger(__name__)


def select_attention_backend(name: str, dtype: torch.dtype, device: torch.device) -> AttentionBackend:
    """`cpp` or `torch_native` as asked for; `auto`: `cpp` where it can be used for `dtype` on `device`.

    ValueError for any other name, KernelsUnavailableError with the reason when what was asked for cannot be used.
    """
    if name not in ATTENTION_BACKENDS:
        raise ValueError(f"attention_backend={name!r}: must be one of {', '.join(ATTENTION_BACKENDS)}")
    if name == "torch_native":
        return TorchNativeBackend()
    reason = CppKernels.why_not(dtype, device)
    if reason is None:
        return CppAttention(dtype)
    if name == "cpp":
        raise KernelsUnavailableError(f"attention_backend={name!r}: {reason}")
    logger.info("cpp attention is not used: %s", reason)
    return TorchNativeBackend()
