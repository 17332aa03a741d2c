"""Selects the attention backend that a model runs with: the requested one, or the fastest available."""

from collections.abc import Collection

import torch

from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.model.attention.base import AttentionBackend, missing_features
from nanoinfer.model.attention.torch_native import TorchCudaBackend, TorchNativeBackend
from nanoinfer.model.kernels.select import AS_ASKED, selected
from nanoinfer.registry import ATTENTION_BACKENDS


def select_attention_backend(
    name: str, dtype: torch.dtype, device: torch.device, wanted: Collection[str] = ()
) -> AttentionBackend:
    """`cpp`, `torch_native` or another registered backend by name. `auto` takes `cpp` if that works for `dtype` on `device`
    and has the `wanted` features (see `wanted_features`), else `torch_native`. `selection_of` tells the choice and why.

    ValueError for any other name, KernelsUnavailableError with the reason when the named backend cannot be used.
    """
    ATTENTION_BACKENDS.check(name)
    backend: AttentionBackend = ATTENTION_BACKENDS[name](dtype, device)
    missing = ", ".join(sorted(missing_features(backend, set(wanted))))
    if missing and name == "auto":
        return selected(_torch_native(dtype, device), "torch_native", f"not cpp: it has no {missing}")
    if missing:
        raise KernelsUnavailableError(
            f"attention_backend={name!r}: cannot do {missing}, which this model and its pool need; use 'torch_native'"
        )
    return backend if name == "auto" else selected(backend, name, AS_ASKED)


def _torch_native(dtype: torch.dtype, device: torch.device) -> AttentionBackend:
    return TorchCudaBackend() if device.type == "cuda" else TorchNativeBackend()


def _cpp(dtype: torch.dtype, device: torch.device) -> AttentionBackend:
    from nanoinfer.model.attention.cpp import CppAttention
    from nanoinfer.model.kernels.cpp import CppKernels

    if (reason := CppKernels.why_not(dtype, device)) is not None:
        raise KernelsUnavailableError(f"attention_backend='cpp': {reason}")
    return CppAttention(dtype)


def _fastest(dtype: torch.dtype, device: torch.device) -> AttentionBackend:
    try:
        return selected(_cpp(dtype, device), "cpp")
    except KernelsUnavailableError as error:
        return selected(_torch_native(dtype, device), "torch_native", f"not cpp: {str(error).partition(': ')[2]}")


# Each function makes a backend for a dtype on a device.
ATTENTION_BACKENDS.update(auto=_fastest, cpp=_cpp, torch_native=_torch_native)
