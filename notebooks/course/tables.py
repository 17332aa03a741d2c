"""Checks by table: cases, what is right, and the usual mistakes, each with the hint that it gets."""

import copy
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import combinations
from types import FrameType, TracebackType
from typing import Any

import numpy as np
import torch

from notebooks.course.expectations import Hint, difference, expect, expect_equal, show

ALSO = "\n\nAlso: "
LINES = 1_000_000  # of Python that one call of the student's code may run

Case = Sequence[Any]
Mistake = str | Callable[..., Any]  # names of mistakes that `right` can make, or a function that makes one
Wrong = Collection[str]  # the names that `right` is given


def compare(
    student: Callable[..., Any],
    right: Callable[..., Any],
    cases: Iterable[Case],
    mistakes: Mapping[str, Mistake] | None = None,
    *,
    hint: str,
    give: Callable[[Any], Any] | None = None,
    atol: float = 0.0,
    rtol: float = 0.0,
) -> None:
    """Raise Hint unless `student(*case)` is `right(*case)` for all cases, and leaves its arguments as they are.

    `mistakes`: hint → a name of a usual mistake, which `right(*case, wrong=[name])` makes, or a function that makes it. The
    hint is that of the one that explains the answers to all cases, or of the two; if there is none, `hint`, with the first
    wrong case.
    `give` makes of each of a case's values what the student gets.
    """
    names = list(inspect.signature(right).parameters)
    answers: list[tuple[Case, Any]] = []
    wrong: tuple[Case, Any, Any] | None = None
    for case in cases:
        arguments = [give(each) for each in case] if give else list(copy.deepcopy(case))
        kept = copy.deepcopy(arguments)
        try:
            with limited(LINES, "your code goes on and on. Does each loop come to its end?"):
                got = student(*arguments)
        except Exception:
            if wrong is None:
                raise
            break  # what went wrong before may say why
        for name, now, before in zip(names, arguments, kept, strict=False):
            changed = type(now).__eq__ is not object.__eq__ and difference(now, before) is not None
            expect(not changed, f"You changed `{name}`, which belongs to the caller. Only read it.")
        want = right(*copy.deepcopy(case))
        answers.append((case, got))
        if wrong is None and difference(got, want, atol, rtol) is not None:
            wrong = case, got, want
    if wrong is None:
        return
    for count in (1, 2):
        for some in combinations(mistakes or {}, count):
            made = _with(right, [(mistakes or {})[said] for said in some])
            if made is not None and all(_gives(made, case, got, atol, rtol) for case, got in answers):
                raise Hint(ALSO.join(some))
    case, got, want = wrong
    said = ", ".join(f"{name}={_short(value)}" for name, value in zip(names, case, strict=False))
    expect_equal(got, want, f"{said}: {hint}", atol=atol, rtol=rtol)


def _with(right: Callable[..., Any], made: Sequence[Mistake]) -> Callable[..., Any] | None:
    """What makes these mistakes; None where they cannot be combined."""
    if len(made) == 1 and callable(made[0]):
        return made[0]
    names = [name for mistake in made if isinstance(mistake, str) for name in mistake.split()]
    return None if any(map(callable, made)) else partial(right, wrong=names)


def _gives(made: Callable[..., Any], case: Case, got: Any, atol: float, rtol: float) -> bool:
    try:
        return difference(got, made(*copy.deepcopy(case)), atol, rtol) is None
    except Exception:  # a mistake that is impossible here
        return False


def _short(value: Any) -> str:
    """Of a large array, and of a list of them, only the shape."""
    if isinstance(value, list) and value and hasattr(value[0], "shape"):
        return f"[{', '.join(map(_short, value))}]"
    if isinstance(value, torch.Tensor | np.ndarray):
        shape = list(value.shape)
        return str(value.tolist()) if value.ndim == 1 and len(value) < 20 else f"{type(value).__name__.lower()} {shape}"
    return show(value)


def expect_rows(student: Callable[..., Any], rows: Iterable[Sequence[Any]]) -> None:
    """For each row (argument, ..., what is right, hint): raise Hint unless the student's answer is right."""
    for *arguments, want, hint in rows:
        expect_equal(student(*copy.deepcopy(arguments)), want, hint)


def expect_refused(call: Callable[[], Any], numbers: Iterable[object], why: str) -> None:
    """Raise Hint unless `call` raises a ValueError that names these numbers."""
    try:
        got = call()
    except ValueError as error:
        names = all(str(number) in str(error) for number in numbers)
        wanted = " and ".join(map(str, numbers))
        expect(names, f"{why} Your ValueError says {str(error)!r}; it should name {wanted}.")
    else:
        raise Hint(f"{why} Raise a ValueError, not {got!r}.")


class _Exceeded(BaseException):
    """No `except Exception` of the student's code may catch it."""


class limited:
    """`with limited(1_000_000, hint):` raises Hint(hint) as soon as its block has run more lines of Python than that.

    Lines of functions that the block calls count, in this thread. They are counted, not timed, so that a busy machine
    refuses nothing.
    """

    def __init__(self, lines: int, hint: str):
        self.lines, self.hint = lines, hint
        self._left = lines
        self._before: Any = None

    def __enter__(self) -> None:
        self._left, self._before = self.lines, sys.gettrace()
        sys.settrace(self._count)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        sys.settrace(self._before)
        if isinstance(error, _Exceeded):
            raise Hint(self.hint) from None

    def _count(self, frame: FrameType, event: str, argument: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise _Exceeded
        return self._count
