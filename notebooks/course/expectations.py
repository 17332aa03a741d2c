"""Hint, expect and expect_equal: how a check explains that an exercise is not right yet."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

_SHOWN = 400  # characters of a value that a hint shows
_PLAIN = (bool, int, float, str, bytes, type(None))


class Hint(AssertionError):
    """Why an exercise is not right yet. A notebook shows only its text, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows instead of a traceback."""
        return [f"{type(self).__name__}: {self}"]


class NotWritten(Hint):
    """The exercise is still the notebook's stub, or the notebook does not define its name."""


class CannotBeRead(Hint):
    """Python cannot read the exercise's cell (SyntaxError), so none of its lines ran."""


def expect(condition: object, hint: str) -> None:
    """Raise Hint(hint) unless `condition` is true."""
    if not condition:
        raise Hint(hint)


def expect_equal(got: object, want: object, hint: str, *, atol: float = 0.0, rtol: float = 0.0) -> None:
    """Raise Hint unless `got` equals `want`: `hint`, then both values, with the shapes and dtypes of tensors and arrays.

    Tensors and arrays must agree in kind, dtype, shape and every value; floats within `atol + rtol * |want|`, NaN equals
    NaN. Lists, tuples and dicts are compared item by item by the same rules. Where `want` is a plain number, string or
    None, `got` must be one too (numpy's numbers count as numbers). Everything else is compared by `==`.
    """
    differs = difference(got, want, atol, rtol)
    if differs is not None:
        raise Hint(f"{hint}\n  got:    {show(got)}\n  wanted: {show(want)}{differs}")


def difference(got: Any, want: Any, atol: float = 0.0, rtol: float = 0.0) -> str | None:
    """None if equal, else a line that says where they differ, or "" if there is nothing to add."""
    if isinstance(want, torch.Tensor | np.ndarray):
        return _array_difference(got, want, atol, rtol)
    if isinstance(want, list | tuple):
        if type(got) is not type(want):
            return f"\n  {a_kind(got)} instead of {a_kind(want)}"
        if len(got) != len(want):
            return f"\n  length {len(got)} instead of {len(want)}"
        return _first_difference(zip(range(len(want)), got, want, strict=True), atol, rtol)
    if isinstance(want, dict):
        if not isinstance(got, dict):
            return f"\n  {a_kind(got)} instead of {a_kind(want)}"
        if got.keys() != want.keys():
            missing, extra = [k for k in want if k not in got], [k for k in got if k not in want]
            return (f"\n  missing keys: {missing}" if missing else "") + (f"\n  unknown keys: {extra}" if extra else "")
        return _first_difference(((key, got[key], want[key]) for key in want), atol, rtol)
    if _is_array(got) or (type(want) in _PLAIN and type(got) not in _PLAIN and not isinstance(got, np.generic)):
        return f"\n  {a_kind(got)} instead of {a_kind(want)}"
    if isinstance(want, float | np.floating) and isinstance(got, int | float | np.number):
        return None if np.isclose(got, want, atol=atol, rtol=rtol, equal_nan=True) else ""
    return None if got == want else ""


def _first_difference(items: Iterable[tuple[Any, Any, Any]], atol: float, rtol: float) -> str | None:
    for place, got, want in items:
        if (inner := difference(got, want, atol, rtol)) is not None:
            return f"\n  first difference at [{place!r}]{inner}"
    return None


def _array_difference(got: Any, want: torch.Tensor | np.ndarray, atol: float, rtol: float) -> str | None:
    if not isinstance(got, type(want)):
        return f"\n  {a_kind(got)} instead of {a_kind(want)}"
    if tuple(got.shape) != tuple(want.shape):
        return f"\n  shape {list(got.shape)} instead of {list(want.shape)}"
    if got.dtype != want.dtype:
        return f"\n  dtype {_dtype(got)} instead of {_dtype(want)}"
    values, wanted = _numpy(got), _numpy(want)
    if np.issubdtype(wanted.dtype, np.inexact):
        same = np.isclose(values, wanted, atol=atol, rtol=rtol, equal_nan=True)
    else:
        same = values == wanted
    if same.all():
        return None
    where = tuple(int(i) for i in np.argwhere(~same)[0])
    at = f"[{', '.join(map(str, where))}]" if where else "the value"
    return f"\n  {int((~same).sum())} of {same.size} differ, first {at}: {values[where]} instead of {wanted[where]}"


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


def a_kind(value: object) -> str:
    """ "a list", "an int", "None"."""
    kind = _kind(value)
    return "None" if value is None else f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"


def show(value: object) -> str:
    """A value in one line, arrays with shape and dtype, shortened where it is long."""
    if isinstance(value, torch.Tensor | np.ndarray):
        values = _numpy(value)
        text = f"{values.tolist() if values.size <= 64 else np.array2string(values, threshold=8).replace(chr(10), '')}"
        return f"{_kind(value)} {list(value.shape)} {_dtype(value)}: {_shortened(text)}"
    if isinstance(value, list | tuple) and any(map(_is_array, value)):
        opening, closing = "[]" if isinstance(value, list) else "()"
        return _shortened(opening + ", ".join(map(show, value)) + closing)
    if isinstance(value, dict) and any(map(_is_array, value.values())):
        return _shortened("{" + ", ".join(f"{key!r}: {show(item)}" for key, item in value.items()) + "}")
    if type(value).__repr__ is object.__repr__ and not dataclasses.is_dataclass(value):
        return a_kind(value)  # its address would tell the student nothing
    return _shortened(repr(value))


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 4] + " ..."
