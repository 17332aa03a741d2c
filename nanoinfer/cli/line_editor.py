"""Reading standard input: whole, or line by line with Ctrl-C. In a terminal, lines can be edited and recalled."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType

from nanoinfer.terminal import styled


def read_text(read: Callable[[], str]) -> str:
    """What `read` reads from standard input. UnicodeError if it is not text in the input's encoding, usually UTF-8."""
    try:
        text = read()
        text.encode()  # some locales let other bytes through as surrogates
    except UnicodeError as error:
        raise UnicodeError("standard input is not UTF-8 text") from error
    return text


def line_reader(prompt: str) -> Callable[[], str]:
    """A function that reads the next line; EOFError at the end of input, KeyboardInterrupt for Ctrl-C.

    In a terminal it shows `prompt`, and earlier lines can be recalled and edited. Otherwise it just reads.
    """
    if not sys.stdin.isatty():
        return input
    with suppress(ImportError):
        import readline  # noqa: F401 - input() edits with it once it is loaded
    start, bold, end = styled(prompt, "bold").partition(prompt)
    shown = f"\001{start}\002{bold}\001{end}\002" if start else prompt  # what takes no room on the line

    def read() -> str:
        try:
            return input(shown)
        except (EOFError, KeyboardInterrupt):
            print()  # leaves the line that was being typed
            raise

    return read


class CtrlC:
    """While this is open (`with CtrlC() as ctrl_c`), Ctrl-C raises KeyboardInterrupt inside `ctrl_c.stops()`, once per
    block, and does nothing elsewhere. A second Ctrl-C therefore does not interrupt the cleanup after an answer.

    Like all signal handlers, it is for the main thread only. If Python does not handle SIGINT (the process ignores it),
    nothing changes.
    """

    def __init__(self) -> None:
        self._armed = False

    def __enter__(self) -> "CtrlC":
        self._before = signal.getsignal(signal.SIGINT)
        if callable(self._before):
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if callable(self._before):
            signal.signal(signal.SIGINT, self._before)

    @contextmanager
    def stops(self) -> Iterator[None]:
        """A block that Ctrl-C ends with KeyboardInterrupt."""
        try:
            self._armed = True
            yield
        finally:
            self._armed = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._armed:
            self._armed = False
            raise KeyboardInterrupt
