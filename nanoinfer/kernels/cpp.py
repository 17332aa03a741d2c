"""CppKernels: kernels in C++. They loop over the data once, not several times, and results don't depend on the batch."""

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.kernels.build import library

Function = Callable[..., None]

_POINTER, _LONG, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_float
# The arguments of every function in kernels.cpp, by its name without the element type.
_ARGUMENTS = {
    "linear": [_POINTER] * 4 + [_LONG] * 3,
    "add_rms_norm": [_POINTER] * 4 + [_LONG] * 2 + [_FLOAT],
    "rotate": [_POINTER] * 4 + [_LONG] * 4,
    "silu_and_mul": [_POINTER] * 2 + [_LONG] * 2,
    "gelu_tanh_and_mul": [_POINTER] * 2 + [_LONG] * 2,
    "attention": [_POINTER] * 7 + [_LONG] * 5 + [_FLOAT, _LONG],
}


def kernel(name: str, dtype: torch.dtype) -> Function:
    """The C function `name` for elements of `dtype`. KernelsUnavailableError when this CPU has no such function."""
    type_name = str(dtype).removeprefix("torch.")
    try:
        function = getattr(library(), f"{name}_{type_name}")
    except AttributeError as error:
        raise KernelsUnavailableError(f"the C++ kernels do not support {type_name} on this CPU") from error
    function.argtypes, function.restype = _ARGUMENTS[name], None
    return function


class CppKernels:
    """For one `dtype` on the CPU. A token's results are the same to the last bit, whichever tokens are computed with it.

    The C functions do not check pointers and sizes. What they rely on, and torch would check, is asserted here.
    KernelsUnavailableError with the reason when they cannot be built or do not support `dtype`.
    """

    def __init__(self, dtype: torch.dtype):
        self._linear, self._add_rms_norm = kernel("linear", dtype), kernel("add_rms_norm", dtype)
        self._rotate, self._silu_and_mul = kernel("rotate", dtype), kernel("silu_and_mul", dtype)
        self._gelu_tanh_and_mul = kernel("gelu_tanh_and_mul", dtype)
        self._columns = int(library().columns())
        self._step = 4 // dtype.itemsize  # elements in a word

    @staticmethod
    def why_not(dtype: torch.dtype, device: torch.device) -> str | None:
        """Why these kernels cannot be used, or None if they can. Compiles them if they are not compiled yet."""
        if device.type != "cpu":
            return f"device {device}: the C++ kernels are for the CPU"
        try:
            CppKernels(dtype)
        except KernelsUnavailableError as error:
            return str(error)
        return None

    def pack(self, weight: torch.Tensor) -> Any:
        """[out, in] → [out / columns, in / step, columns, step]: a tile's columns are side by side, in reading order.

        `step` elements make a 4-byte word. Missing columns in the last tile, and a missing element in the last word, are 0.
        """
        out_features, in_features = weight.shape
        groups, steps = -(-out_features // self._columns), -(-in_features // self._step)
        whole = weight.new_zeros(groups * self._columns, steps * self._step)
        whole[:out_features, :in_features] = weight
        return whole.view(groups, self._columns, steps, self._step).transpose(1, 2).contiguous()

    def linear(self, x: torch.Tensor, packed: Any, bias: torch.Tensor | None, out_features: int) -> torch.Tensor:
        """In tiles of 6 tokens by `columns` outputs. Each sum adds the inputs in the same order, whatever T is."""
        rows, in_features = x.shape
        assert x.dtype is packed.dtype
        assert -(-in_features // self._step) == packed.shape[1]
        if in_features % self._step:
            x = torch.nn.functional.pad(x, (0, self._step - in_features % self._step))
        x = x.contiguous()
        y = x.new_empty(rows, out_features)
        bias_pointer = None if bias is None else bias.data_ptr()
        self._linear(x.data_ptr(), packed.data_ptr(), bias_pointer, y.data_ptr(), rows, x.shape[1], out_features)
        return y

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Like `add_rms_norm`, without the addition."""
        x = x.contiguous()
        out, size = torch.empty_like(x), x.shape[-1]
        self._add_rms_norm(x.data_ptr(), None, weight.data_ptr(), out.data_ptr(), x.numel() // size, size, eps)
        return out

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Changes `residual` in place."""
        assert x.shape == residual.shape
        assert x.is_contiguous()
        assert residual.is_contiguous()
        out = torch.empty_like(x)
        self._add_rms_norm(
            x.data_ptr(), residual.data_ptr(), weight.data_ptr(), out.data_ptr(), len(x), x.shape[1], eps
        )
        return out, residual

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Changes `x` in place, even if it is part of wider rows."""
        rows, heads, dim = x.shape
        assert x.stride()[1:] == (dim, 1)
        assert positions.dtype is torch.int64
        assert positions.shape == (rows,)
        assert positions.is_contiguous()
        self._rotate(x.data_ptr(), cos.data_ptr(), sin.data_ptr(), positions.data_ptr(), rows, x.stride(0), heads, dim)
        return x

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        """One loop over the data."""
        return self._activation_and_mul(self._silu_and_mul, x)

    def gelu_tanh_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        """One loop over the data."""
        return self._activation_and_mul(self._gelu_tanh_and_mul, x)

    def _activation_and_mul(self, function: Function, x: torch.Tensor) -> torch.Tensor:
        rows, width = x.shape
        assert x.is_contiguous()
        out = x.new_empty(rows, width // 2)
        function(x.data_ptr(), out.data_ptr(), rows, width // 2)
        return out
