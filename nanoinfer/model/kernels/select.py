"""Selects the kernels that a model runs on, the requested ones or the fastest available. A Selection tells the choice."""

from dataclasses import dataclass
from typing import Any

import torch

from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.model.kernels.base import Kernels
from nanoinfer.model.kernels.torch_native import OneDNNKernels, TorchKernels

AS_ASKED = "as asked for"
KERNELS = ("auto", "cpp", "onednn", "torch")


@dataclass(frozen=True)
class Selection:
    """`name`: as in the option that chooses (`cpp`, `torch_native`). `reason`: why no faster one runs; "" for the fastest.

    `str()` gives both: "torch (not cpp: no C++ compiler: ...)".
    """

    name: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})" if self.reason else self.name


def selected(chosen: Any, name: str, reason: str = "") -> Any:
    """Set the attribute `selection` of `chosen`, which is kernels or an attention backend, and return it."""
    chosen.selection = Selection(name, reason)
    return chosen


def selection_of(chosen: object) -> Selection:
    """The Selection that `selected` gave to `chosen`; for any other object, the name of its class."""
    selection = getattr(chosen, "selection", None)
    return selection if isinstance(selection, Selection) else Selection(type(chosen).__name__)


def check_name(name: str) -> None:
    """ValueError unless `name` is one of KERNELS. This can be checked before a model is loaded."""
    if name not in KERNELS:
        raise ValueError(f"kernels={name!r}: must be one of {', '.join(KERNELS)}")


def select_kernels(name: str, dtype: torch.dtype, device: torch.device) -> Kernels:
    """`cpp`, `onednn` or `torch` by name. `auto` takes the first of these that can be used for `dtype` on `device`.

    `selection_of` tells which ones were chosen, and why no faster ones.
    ValueError for any other name, KernelsUnavailableError with the reason when the named kernels cannot be used.
    """
    check_name(name)
    why_not: list[str] = []
    for candidate, make in (("cpp", _cpp), ("onednn", _onednn)):
        if name not in (candidate, "auto"):
            continue
        try:
            return selected(make(dtype, device), candidate, "; ".join(why_not) if name == "auto" else AS_ASKED)
        except KernelsUnavailableError as error:
            if name == candidate:
                raise KernelsUnavailableError(f"kernels={name!r}: {error}") from error
            why_not.append(f"not {candidate}: {error}")
    return selected(TorchKernels(), "torch", "; ".join(why_not) or AS_ASKED)


# Its module is imported when it is needed, not with nanoinfer.
def _cpp(dtype: torch.dtype, device: torch.device) -> Kernels:
    from nanoinfer.model.kernels.cpp import CppKernels

    if (reason := CppKernels.why_not(dtype, device)) is not None:
        raise KernelsUnavailableError(reason)
    return CppKernels(dtype)


def _onednn(dtype: torch.dtype, device: torch.device) -> Kernels:
    if (reason := OneDNNKernels.why_not(dtype, device)) is not None:
        raise KernelsUnavailableError(reason)
    return OneDNNKernels()
