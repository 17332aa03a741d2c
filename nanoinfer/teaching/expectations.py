"""Hint, expect and expect_equal: what a check says when an exercise is not right yet."""

import dataclasses
from typing import Any

import numpy as np
import torch

_SHOWN = 400  # characters of a value that a hint shows


class Hint(AssertionError):
    """Why an exercise is not right yet. In a notebook its text alone is shown, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows instead of a traceback."""
        return [f"{type(self).__name__}: {self}"]


class NotWritten(Hint):
    """The exercise is still the stub that came with the notebook, or its name is missing."""


def expect(condition: object, hint: str) -> None:
    """Raise Hint(hint) unless `condition` is true."""
    if not condition:
        raise Hint(hint)


def expect_equal(got: object, want: object, hint: str, *, atol: float = 0.0, rtol: float = 0.0) -> None:
    """Raise Hint unless `got` equals `want`: `hint`, then both, with shapes and dtypes where they have them.

    Tensors and arrays must agree in kind, dtype, shape and every value; floats within `atol + rtol * |want|`, NaN equals
    NaN. Lists, tuples and dicts are compared item by item by the same rules, everything else by `==`.
    """
    difference = _difference(got, want, atol, rtol)
    if difference is not None:
        raise Hint(f"{hint}\n  got:    {_show(got)}\n  wanted: {_show(want)}{difference}")


def _difference(got: Any, want: Any, atol: float, rtol: float) -> str | None:
    """None when equal, else a line (or nothing) that says where they differ."""
    if isinstance(want, torch.Tensor | np.ndarray):
        return _array_difference(got, want, atol, rtol)
    if isinstance(want, list | tuple):
        if not isinstance(got, type(want)) and not (isinstance(got, list | tuple) and type(got) is type(want)):
            return f"\n  a {type(got).__name__} instead of a {type(want).__name__}"
        if len(got) != len(want):
            return f"\n  {len(got)} items instead of {len(want)}"
        for i, (mine, theirs) in enumerate(zip(got, want, strict=True)):
            if (inner := _difference(mine, theirs, atol, rtol)) is not None:
                return f"\n  first difference at [{i}]{inner if _is_array(theirs) else ''}"
        return None
    if isinstance(want, dict):
        if not isinstance(got, dict):
            return f"\n  a {type(got).__name__} instead of a dict"
        if got.keys() != want.keys():
            missing, extra = [k for k in want if k not in got], [k for k in got if k not in want]
            return (f"\n  missing keys: {missing}" if missing else "") + (f"\n  unknown keys: {extra}" if extra else "")
        for key in want:
            if (inner := _difference(got[key], want[key], atol, rtol)) is not None:
                return f"\n  first difference at [{key!r}]{inner if _is_array(want[key]) else ''}"
        return None
    if isinstance(want, float | np.floating) and isinstance(got, int | float | np.number):
        same = np.isclose(got, want, atol=atol, rtol=rtol, equal_nan=True)
    else:
        same = got == want
    if isinstance(same, torch.Tensor | np.ndarray):
        return f"\n  a {_kind(got)} instead of a {type(want).__name__}"
    return None if same else ""


def _array_difference(got: Any, want: torch.Tensor | np.ndarray, atol: float, rtol: float) -> str | None:
    if not isinstance(got, type(want)):
        return f"\n  a {_kind(got)} instead of a {_kind(want)}"
    if tuple(got.shape) != tuple(want.shape):
        return f"\n  shape {list(got.shape)} instead of {list(want.shape)}"
    if got.dtype != want.dtype:
        return f"\n  dtype {_dtype(got)} instead of {_dtype(want)}"
    mine, theirs = _numpy(got), _numpy(want)
    if np.issubdtype(theirs.dtype, np.inexact):
        same = np.isclose(mine, theirs, atol=atol, rtol=rtol, equal_nan=True)
    else:
        same = mine == theirs
    if same.all():
        return None
    where = tuple(int(i) for i in np.argwhere(~same)[0])
    at = f"[{', '.join(map(str, where))}]" if where else "the value"
    return f"\n  {int((~same).sum())} of {same.size} differ, first {at}: {mine[where]} instead of {theirs[where]}"


def _numpy(array: torch.Tensor | np.ndarray) -> np.ndarray:
    if isinstance(array, np.ndarray):
        return array
    array = array.detach().cpu()
    return (array.float() if array.dtype in (torch.bfloat16, torch.float16) else array).numpy()


def _is_array(value: object) -> bool:
    return isinstance(value, torch.Tensor | np.ndarray)


def _dtype(array: torch.Tensor | np.ndarray) -> str:
    return str(array.dtype).removeprefix("torch.")


def _kind(value: object) -> str:
    return {torch.Tensor: "tensor", np.ndarray: "numpy array"}.get(type(value), type(value).__name__)


def _show(value: object) -> str:
    """A value in one line, arrays with shape and dtype, cut where it is long."""
    if isinstance(value, torch.Tensor | np.ndarray):
        values = _numpy(value)
        text = f"{values.tolist() if values.size <= 64 else np.array2string(values, threshold=8).replace(chr(10), '')}"
        return f"{_kind(value)} {list(value.shape)} {_dtype(value)}: {_cut(text)}"
    if isinstance(value, list | tuple) and any(map(_is_array, value)):
        opening, closing = "[]" if isinstance(value, list) else "()"
        return _cut(opening + ", ".join(map(_show, value)) + closing)
    if isinstance(value, dict) and any(map(_is_array, value.values())):
        return _cut("{" + ", ".join(f"{key!r}: {_show(item)}" for key, item in value.items()) + "}")
    if type(value).__repr__ is object.__repr__ and not dataclasses.is_dataclass(value):
        return f"a {type(value).__name__}"  # its address says nothing
    return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 4] + " ..."
