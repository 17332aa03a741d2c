"""The functions of the C++ library: how they are called, and how their calls are recorded."""

import ctypes
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from nanoinfer.errors import KernelsUnavailableError

# What every function in kernels.cpp takes, by its name without the element type: P a pointer, q an integer, d a float.
# Each is one word of 8 bytes (program.h says how they are read).
ARGUMENTS = {
    "linear": "PPPPqqq",
    "int8_linear": "PPPPqqq",
    "int4_linear": "PPPPPqqq",
    "int4_minimum_linear": "PPPPPqqq",
    "int8_groups_linear": "PPPPPqqq",
    "linear_silu_and_mul": "PPPPPPqqq",
    "linear_gelu_tanh_and_mul": "PPPPPPqqq",
    "low_rank": "PPPPPPPqqq",
    "linear_argmax": "PPPPPqqq",
    "add_rms_norm": "PPPPqqd",
    "norm_heads": "PPqqqqd",
    "rotate": "PPPPqqqq",
    "silu_and_mul": "PPqq",
    "gelu_tanh_and_mul": "PPqq",
    "dispatch": "PPPPPPqqqqq",
    "each_expert": "qPPqq",  # and the arguments of what is called for each (see experts.py)
    "combine": "PPPPPPqqq",
    "add": "PPPqq",
    "scale": "Pqqd",
    "softcap": "Pqqd",
    "attention": "PPPPPPPPPPqqqqqdqd",
    "draw": "PPPPPqq",
    "gather_rows": "PPPqq",
    "store_rows": "PPPPPqqq",
    "store_int8": "PPPPPPPqqqq",
    "replay": "PqP",
    "run_multi_step": "PqPPPPPPPqqq",
}
PRODUCTS = [name for name in ARGUMENTS if "linear" in name and name != "linear_argmax"]  # see Product


class Function:
    """A C function of the library. Calling it with pointers (integers, or None for null) and numbers runs it.

    While `record_calls` is active in this thread, the call is also kept. `more`: arguments beside those of ARGUMENTS.
    """

    def __init__(self, name: str, symbol: str, more: str = ""):
        from nanoinfer.model.kernels.build import (
            library,  # here, because a program that uses no kernels need not load it
        )

        function = getattr(library(), symbol)
        self.name, self.arguments = name, ARGUMENTS[name] + more
        self.address: int = ctypes.cast(function, ctypes.c_void_p).value or 0
        self._pack = struct.Struct(f"={self.arguments.replace('P', 'q')}").pack
        self._function = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(self.address)

    def __call__(self, *arguments: float | None) -> None:
        words = self._pack(*arguments)
        self._function(words)
        if _recording.calls is not None:
            _recording.calls.append((self, words))


class Product(Function):
    """A product with packed weights. Its first argument is x, and its last four are y, rows, in and out.

    Inside `products_made_by`, that is called instead, with this function and the arguments.
    """

    def __call__(self, *arguments: float | None) -> None:
        if (instead := _recording.instead) is None:
            super().__call__(*arguments)
        else:
            instead(self, arguments)


Call = tuple[Function, bytes]  # what was called, with which words
Instead = Callable[[Product, tuple[Any, ...]], None]


class _Recording(threading.local):
    calls: list[Call] | None = None
    instead: "Instead | None" = None


_recording = _Recording()


@cache
def function(name: str, dtype: torch.dtype | None = None) -> Function:
    """The function `name` of ARGUMENTS, for elements of `dtype` if it has a type. KernelsUnavailableError when this CPU has
    no such function."""
    type_name = "" if dtype is None else str(dtype).removeprefix("torch.")
    try:
        kind = Product if name in PRODUCTS else Function
        return kind(name, f"{name}_{type_name}" if type_name else name)
    except AttributeError as error:
        raise KernelsUnavailableError(f"the C++ kernels do not support {type_name} on this CPU") from error


@contextmanager
def record_calls() -> Iterator[list[Call]]:
    """Keep the calls that this thread makes inside the block, in order."""
    assert _recording.calls is None, "recordings do not nest"
    calls: list[Call] = []
    _recording.calls = calls
    try:
        yield calls
    finally:
        _recording.calls = None


@contextmanager
def products_made_by(instead: Instead) -> Iterator[None]:
    """In place of every Product that this thread calls inside the block, `instead` is called."""
    _recording.instead = instead
    try:
        yield
    finally:
        _recording.instead = None


def recording() -> bool:
    """True inside a `record_calls` block of this thread."""
    return _recording.calls is not None
