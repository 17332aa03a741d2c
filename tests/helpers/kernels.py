"""Which of the kernels in C++ there are on this machine."""

import pytest
import torch

from nanoinfer.device import resolve_dtype
from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.kernels.select import select_kernels


def need_cpp(dtype: str) -> None:
    """Skip the test, saying why, where the kernels in C++ do not compute this dtype."""
    try:
        select_kernels("cpp", resolve_dtype(dtype), torch.device("cpu"))
    except KernelsUnavailableError as error:
        pytest.skip(str(error))
