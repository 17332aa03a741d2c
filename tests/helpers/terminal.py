"""A program in a pseudo terminal: what a user types, and what the screen shows."""

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import TracebackType

from tests.helpers.waiting import HANG_S, until

CTRL_C, CTRL_D, UP = "\x03", "\x04", "\x1b[A"
CUT_SHORT = re.compile(r"\x1b(\[[0-9;?]*|\][^\x07]*)?$")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\x1b\][^\x07]*\x07")


class Terminal:
    """Runs Python code as the foreground program of a new terminal; ends it on exit."""

    def __init__(self, code: str, columns: int = 80, lines: int = 40, **environment: str):
        self._screen, keyboard = pty.openpty()
        fcntl.ioctl(keyboard, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        names = {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "OMP_NUM_THREADS": "1", **environment}
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=keyboard,
            stdout=keyboard,
            stderr=keyboard,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C sends SIGINT
            env={**os.environ, **names},
        )
        os.close(keyboard)
        self.shown = ""  # all of it, without escape sequences
        self._seen = 0
        self._left = ""  # an escape sequence that has not come to its end
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self._screen)

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._screen, text.encode())

    def expect(self, pattern: str) -> re.Match[str]:
        """Wait until what has been shown since the last match contains `pattern`."""
        end = time.monotonic() + HANG_S
        while True:
            found = re.compile(pattern).search(self.shown, self._seen)
            if found:
                self._seen = found.end()
                return found
            if not self._read(end):
                raise AssertionError(f"no {pattern!r} in {self.shown[self._seen :]!r}")

    def expect_waiting(self) -> None:
        """Wait until the program waits for keys: it has read those that were typed, and does nothing."""
        stat = Path(f"/proc/{self.process.pid}/stat")
        if stat.exists():
            until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "S", "waiting for keys")

    def exit_code(self) -> int:
        """Read until the program has ended."""
        end = time.monotonic() + HANG_S
        while self._read(end):
            pass
        return self.process.wait(HANG_S)

    def _read(self, end: float) -> bool:
        """Read what comes next; False when the program has ended or it is too late."""
        ready, _, _ = select.select([self._screen], [], [], max(end - time.monotonic(), 0))
        if not ready:
            return False
        try:
            data = os.read(self._screen, 65536)
        except OSError:  # the terminal's other end is closed
            return False
        text = self._left + self._decoder.decode(data)
        found = CUT_SHORT.search(text)
        self._left = found[0] if found else ""
        self.shown += ESCAPES.sub("", text.removesuffix(self._left))
        return bool(data)
