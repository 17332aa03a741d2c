"""Which of the kernels there are on this machine; and what their tests multiply, and how near a result must be."""

import pytest
import torch

from nanoinfer.device import resolve_dtype
from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.model.kernels import Kernels, select_kernels

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3}  # relative to the largest value: one rounding, or few


def need_kernels(name: str, dtype: torch.dtype) -> Kernels:
    """These kernels; the test is skipped, saying why, where they do not compute this dtype."""
    try:
        return select_kernels(name, dtype, CPU)
    except KernelsUnavailableError as error:
        pytest.skip(str(error))


def need_cpp(dtype: str | torch.dtype) -> Kernels:
    """The kernels in C++, or a skip."""
    return need_kernels("cpp", resolve_dtype(dtype))


def all_kernels(*names: str) -> list[str]:
    """Plain torch, and those of `names` that compute float32 on this machine."""

    def can(name: str) -> bool:
        try:
            select_kernels(name, torch.float32, CPU)
        except KernelsUnavailableError:
            return False
        return True

    return ["torch", *filter(can, names)]


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Normally distributed numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Equal up to the rounding of this dtype."""
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    error = (got.float() - wanted.float()).abs().max() / wanted.float().abs().max()
    assert error <= TOLERANCE[got.dtype]
