"""limited: an end for a student's code that may loop for ever."""

import sys
from types import FrameType, TracebackType
from typing import Any

from notebooks.course.expectations import Hint


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
