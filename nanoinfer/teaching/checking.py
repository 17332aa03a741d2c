"""check and attempt: what an exercise's cells call."""

import linecache
import re
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from nanoinfer.teaching.exercises import Exercise, Given, find
from nanoinfer.teaching.expectations import Hint, NotWritten

_STUB = re.compile(r"(?:exercise (\d+\.\d+))?")  # without a text: nbgrader's stub


def check(id: str, namespace: Mapping[str, Any]) -> None:
    """Check exercise `id` ("4.1") with what the notebook defines (`globals()`): prints one line when it is right.

    Raises Hint when it is not: the exercise is not written yet, its code raises (told with the line), or its answer is
    wrong. ValueError when there is no such exercise.
    """
    exercise = find(id)
    proved = run_check(exercise, namespace)
    print(f"✓ {exercise.id} {exercise.title}" + (f": {proved}" if proved else ""))


def run_check(exercise: Exercise, namespace: Mapping[str, Any]) -> str | None:
    """Run one checker; what it proved, if it says so. Raises nothing but Hint, whatever the notebook's code does
    (KeyboardInterrupt apart)."""
    head = f"{exercise.id} {exercise.title}"
    try:
        return exercise.checker(Given(namespace))
    except Hint as hint:
        raise type(hint)(f"{head}: {hint}") from None
    except NotImplementedError as error:
        if stub := _STUB.fullmatch(str(error)):
            raise NotWritten(f"{head}: {_unwritten(exercise.id, stub[1])}") from None
        raise Hint(_told(head, error, namespace)) from error
    except (Exception, SystemExit) as error:
        raise Hint(_told(head, error, namespace)) from error


class attempt:
    """`with attempt("4.1"):` runs its block; what is missing because 4.1 is not written yet is told in one line.

    Every other exception passes through: it is the reader's own, and its traceback shows where.
    """

    def __init__(self, id: str):
        self.id = id

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        stub = _STUB.fullmatch(str(error)) if isinstance(error, NotImplementedError) else None
        if stub is None:
            return False
        print(f"{self.id}: {_unwritten(self.id, stub[1])}")
        return True


def _unwritten(id: str, stub: str | None) -> str:
    return "not written yet." if stub in (id, None) else f"needs exercise {stub}, which is not written yet."


def _told(head: str, error: BaseException, namespace: Mapping[str, Any]) -> str:
    """The exception, and the reader's lines that led to it; without such a line, the check could not use the answer."""
    said = str(error)[:1000]
    what = f"{type(error).__name__}: {said}" if said else type(error).__name__
    lines = []
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_globals is namespace:
            code = linecache.getline(frame.f_code.co_filename, traceback.tb_lineno).strip()
            place = f"in {frame.f_code.co_name}, line {traceback.tb_lineno} of its cell"
            lines.append(f"\n  {place}: {code}" if code else f"\n  {place}")
        traceback = traceback.tb_next
    if lines:
        return f"{head}: your code raises {what}{''.join(lines[-3:])}"
    return f"{head}: the check cannot work with what your code gives: {what}"
