"""CppKernels: kernels in C++. They loop over the data once, not several times, and results don't depend on the batch."""

import ctypes
from typing import Any

import numpy as np
import torch

from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.model.kernels.base import AddedToGates, Dispatched
from nanoinfer.model.kernels.build import library
from nanoinfer.model.kernels.functions import Function, function, recording
from nanoinfer.model.kernels.huge_pages import HugePages, ReusedPages

LARGE = 32 << 20  # bytes: glibc maps a larger result anew at every call, and gives its pages back at the end


class CppKernels:
    """For one `dtype` on the CPU. A token's results are the same to the last bit, whichever tokens are computed with it.

    The C functions do not check pointers and sizes. What they rely on, and torch would check, is asserted here.
    KernelsUnavailableError with the reason when they cannot be built or do not support `dtype`.
    """

    recordable = True  # a Program can be made of their calls

    def __init__(self, dtype: torch.dtype):
        self.dtype = dtype
        self._linear, self._linear_argmax = function("linear", dtype), function("linear_argmax", dtype)
        self._gated_linear = {name: function(f"linear_{name}", dtype) for name in ("silu_and_mul", "gelu_tanh_and_mul")}
        self._silu_and_mul, self._gelu_tanh_and_mul = (function(name, dtype) for name in self._gated_linear)
        self._add_rms_norm, self._norm_heads = function("add_rms_norm", dtype), function("norm_heads", dtype)
        self._rotate, self._scale = function("rotate", dtype), function("scale", dtype)
        self._dispatch, self._combine = function("dispatch", dtype), function("combine", dtype)
        self._softcap, self._gather_rows = function("softcap", dtype), function("gather_rows")
        self._draw = function("draw")
        type_name = str(dtype).removeprefix("torch.")
        self.memory = HugePages()  # where packed weights lie
        self._large = ReusedPages()  # where large results lie
        self._columns, self._inputs = (int(library()[f"linear_{size}_{type_name}"]()) for size in ("columns", "inputs"))
        self._step = 4 // dtype.itemsize  # elements in a word
        instructions = library()[f"instructions_{type_name}"]
        instructions.restype = ctypes.c_char_p
        self.instructions: str = instructions().decode()  # that products use: amx_bf16, avx512_bf16, avx512f or avx2

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
        """[out, in] → [out / columns, in / step, columns, step]: a group's columns are side by side, in reading order.

        `step` elements make a 4-byte word. The last group has zeros for missing columns and inputs.
        """
        out_features, in_features = weight.shape
        weight = torch.nn.functional.pad(weight, (0, -in_features % self._inputs, 0, -out_features % self._columns))
        words = weight.view(-1, self._columns, weight.shape[1] // self._step, self._step)
        return self.memory.copy(words.transpose(1, 2))

    def pack_gated(self, weight: torch.Tensor) -> Any:
        """Each group of columns has as many gates as ups, and an up is half a group behind its gate."""
        out_features, in_features = weight.shape
        half, size = self._columns // 2, out_features // 2
        parts = torch.nn.functional.pad(weight.view(2, size, in_features), (0, 0, 0, -size % half))
        return self.pack(parts.view(2, -1, half, in_features).transpose(0, 1).reshape(-1, in_features))

    def linear(self, x: torch.Tensor, packed: Any, bias: torch.Tensor | None, out_features: int) -> torch.Tensor:
        """In blocks of a few tokens by `columns` outputs. Each sum adds the inputs in the same order, whatever T is."""
        y = x.new_empty(len(x), out_features)
        self._multiply(self._linear, x, packed, bias, y)
        return y

    def gated_linear(
        self,
        x: torch.Tensor,
        packed: Any,
        bias: torch.Tensor | None,
        size: int,
        activation: str,
        added: AddedToGates | None = None,
    ) -> torch.Tensor:
        """Gates and ups never go to memory, but are rounded as if they did."""
        large = len(x) * size * x.itemsize > LARGE and not recording()
        y = self._large.empty(len(x), size, x.dtype) if large else x.new_empty(len(x), size)
        pointers = (0, 0) if added is None else (added.delta.data_ptr(), added.adapters.data_ptr())
        self._multiply(self._gated_linear[activation], x, packed, bias, y, *pointers)
        return y

    def linear_argmax(
        self, x: torch.Tensor, packed: Any, bias: torch.Tensor | None, out_features: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The outputs are compared where they are computed, and not stored."""
        token_ids, largest = x.new_empty(len(x), dtype=torch.int64), x.new_empty(len(x), dtype=torch.float32)
        x, bias_pointer = self._checked(x, packed, bias)
        self._linear_argmax(
            x.data_ptr(),
            packed.data_ptr(),
            bias_pointer,
            token_ids.data_ptr(),
            largest.data_ptr(),
            *x.shape,
            out_features,
        )
        return token_ids, largest

    def _multiply(
        self, function: Function, x: torch.Tensor, packed: Any, bias: torch.Tensor | None, y: torch.Tensor, *more: int
    ) -> None:
        x, bias_pointer = self._checked(x, packed, bias)
        function(x.data_ptr(), packed.data_ptr(), bias_pointer, *more, y.data_ptr(), *x.shape, y.shape[1])

    def _checked(self, x: torch.Tensor, packed: Any, bias: torch.Tensor | None) -> tuple[torch.Tensor, int]:
        """`x` with whole words, and where the bias is."""
        in_features = x.shape[1]
        assert x.dtype is packed.dtype
        assert in_features + -in_features % self._inputs == packed.shape[1] * self._step
        if in_features % self._step:
            x = torch.nn.functional.pad(x, (0, self._step - in_features % self._step))
        return x.contiguous(), 0 if bias is None else bias.data_ptr()

    def embed(self, table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Copies of rows. IndexError for an id outside the table, except in a pass that is being captured."""
        assert ids.dtype is torch.int64
        assert table.is_contiguous()
        assert ids.is_contiguous()
        if not recording() and len(ids) and not (ids.min() >= 0 and ids.max() < len(table)):
            raise IndexError(f"input_ids: must be in 0..{len(table) - 1}")
        out = table.new_empty(len(ids), table.shape[1])
        row_bytes = table.shape[1] * table.itemsize
        self._gather_rows(table.data_ptr(), ids.data_ptr(), out.data_ptr(), len(ids), row_bytes)
        return out

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Like `add_rms_norm`, without the addition."""
        x = x.contiguous()
        out, size = torch.empty_like(x), x.shape[-1]
        self._add_rms_norm(x.data_ptr(), 0, weight.data_ptr(), out.data_ptr(), x.numel() // size, size, eps)
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

    def norm_heads(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Changes `x` in place, even if it is part of wider rows."""
        rows, heads, dim = x.shape
        assert x.stride()[1:] == (dim, 1)
        self._norm_heads(x.data_ptr(), weight.data_ptr(), rows, x.stride(0), heads, dim, eps)
        return x

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

    def dispatch(self, x: torch.Tensor, logits: torch.Tensor, top_k: int, normalized: bool) -> Dispatched:
        """One call, whatever the router finds."""
        rows, size = x.shape
        experts = logits.shape[1]
        assert len(logits) == rows
        assert top_k <= experts
        assert x.is_contiguous()
        assert logits.is_contiguous()
        dispatched = Dispatched(
            x.new_empty(rows * top_k, size),
            x.new_empty(experts + 1, dtype=torch.int32),
            x.new_empty(rows, top_k, dtype=torch.int32),
            x.new_empty(rows, top_k, dtype=torch.float32),
        )
        pointers = (tensor.data_ptr() for tensor in (x, logits, *dispatched))
        self._dispatch(*pointers, rows, size, experts, top_k, normalized)
        return dispatched

    def combine(
        self,
        y: torch.Tensor,
        dispatched: Dispatched,
        shared: torch.Tensor | None = None,
        shared_gate: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """In the order in which a token's experts were chosen."""
        rows, top_k = dispatched.places.shape
        assert len(y) == rows * top_k
        assert y.is_contiguous()
        out = y.new_empty(rows, y.shape[1])
        more = (0, 0)
        if shared is not None and shared_gate is not None:
            assert shared.is_contiguous()
            assert shared_gate.is_contiguous()
            more = shared.data_ptr(), shared_gate.data_ptr()
        of_experts = (tensor.data_ptr() for tensor in (y, dispatched.places, dispatched.weights))
        self._combine(*of_experts, *more, out.data_ptr(), rows, y.shape[1], top_k)
        return out

    def scale(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        """Changes `x` in place."""
        assert x.is_contiguous()
        self._scale(x.data_ptr(), len(x), x.shape[1], factor)
        return x

    def softcap(self, x: torch.Tensor, cap: float) -> torch.Tensor:
        """Changes `x` in place."""
        assert x.is_contiguous()
        self._softcap(x.data_ptr(), len(x), x.shape[1], cap)
        return x

    def draw(
        self, scores: torch.Tensor, temperatures: np.ndarray, numbers: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Row by row, without a table of cumulative probabilities."""
        rows, size = scores.shape
        assert scores.dtype is torch.float32
        assert temperatures.dtype == np.float32
        assert numbers.dtype == np.float64
        assert temperatures.shape == numbers.shape == (rows,)
        scores = scores.contiguous()
        token_ids, totals = torch.empty(rows, dtype=torch.int64), torch.empty(rows, dtype=torch.float64)
        pointers = (
            scores.data_ptr(),
            temperatures.ctypes.data,
            numbers.ctypes.data,
            token_ids.data_ptr(),
            totals.data_ptr(),
        )
        self._draw(*pointers, rows, size)
        return token_ids, totals
