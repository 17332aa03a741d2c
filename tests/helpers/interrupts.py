"""A handler of signals that raises, and an interrupt at any call of the package, for tests of what that leaves behind."""

import inspect
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import nanoinfer

PACKAGE = str(Path(nanoinfer.__file__).parent)


class Interrupted(BaseException):
    """What the handler raises: no Exception, as KeyboardInterrupt and the panics of Rust are none."""


@contextmanager
def raising(number: int, kind: type[BaseException] = Interrupted) -> Iterator[None]:
    """While the block runs, signal `number` raises `kind` (with the signal's name) in the main thread."""

    def handler(number: int, frame: FrameType | None) -> None:
        raise kind(signal.Signals(number).name)

    before = signal.signal(number, handler)
    try:
        yield
        assert signal.getsignal(number) is handler, "a handler is left"
    finally:
        signal.signal(number, before)


@contextmanager
def interrupted_at(moment: int) -> Iterator[list[str]]:
    """Raise Interrupted in this thread at the `moment`-th call or return of a function of the package inside the block, and
    end the block with it: Python runs signal handlers there. What it yields says where; it is empty if there are fewer.

    Not in generators: what is raised while Python closes one is only printed.
    """
    moments, where = count(1), list[str]()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE) or code.co_flags & inspect.CO_GENERATOR:
            return None
        if event in ("call", "return") and next(moments) == moment:
            sys.settrace(None)
            where.append(f"{event} of {code.co_qualname}")
            raise Interrupted(where[0])
        frame.f_trace_lines = False
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield where
    except Interrupted:
        pass
    finally:
        sys.settrace(before)
