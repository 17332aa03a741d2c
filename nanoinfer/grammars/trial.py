"""Trial: has a helper process compile a grammar that might kill this one, or never be done.

    this process                      trial_program.py
    text ───────── its stdin ───────► compiles it, in a thread with half of the stack that there is here
    waits, or ends it                 follows it for a few tokens
         ◄── exit status, or the signal by which it died

What the helper survives is compiled here, again: compiling takes the same way every time, and has twice the stack here.
"""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nanoinfer.grammars.making import STACK_BYTES
from nanoinfer.grammars.refusal import Refusal

PROGRAM = (sys.executable, "-I", "-S", str(Path(__file__).with_name("trial_program.py")))
CPU_S = 5  # of the helper's computing time
MEMORY_BYTES = 2 * 2**30  # of the helper's address space
FATAL = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGXCPU")  # what the grammar itself is to blame for


class Trial:
    """One trial. `verdict`: why the grammar cannot be compiled; None until then, or if it can. `program`: the helper's
    command."""

    def __init__(self, text: str, limits: Mapping[str, Any], program: Sequence[str] = PROGRAM):
        self._job = {
            "path": sys.path,
            "text": text,
            "limits": dict(limits),
            "stack_bytes": STACK_BYTES // 2,
            "memory_bytes": MEMORY_BYTES,
            "cpu_s": CPU_S,
        }
        self._program = program
        self._lock = threading.Lock()  # held for moments, by two threads at most, and by none in a forked process
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False
        self.verdict: Refusal | None = None

    def run(self) -> None:
        """Start the helper and wait for it. Refusal when it could not be tried, which says nothing about the grammar."""
        try:
            process = subprocess.Popen(
                self._program,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for this process, which ends the helper
            )
        except OSError as error:
            raise Refusal(
                f"is so large that it must be tried in a process of its own, which cannot start: {error}"
            ) from error
        # Its stdin stays open until then: the helper ends when it is closed, so also when this process does.
        with process:
            with self._lock:
                self._process = process
            if self._is_stopped:
                process.kill()
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps(self._job).encode() + b"\n")
                process.stdin.flush()
            status = process.wait()
        if not self._is_stopped:
            self._judge(status)

    def stop(self) -> None:
        """End the helper."""
        with self._lock:
            self._is_stopped = True
            if self._process is not None:
                self._process.kill()

    def _judge(self, status: int) -> None:
        if not status:
            return
        try:
            name = signal.Signals(-status).name
        except ValueError:
            raise Refusal(
                f"is so large that it must be tried in a process of its own, which failed with status {status}"
            ) from None
        if name not in FATAL:
            raise Refusal(f"is so large that it must be tried in a process of its own, which was ended by {name}")
        self.verdict = Refusal(
            f"is too deep or too large: compiling it takes more stack, memory or time than is safe ({name})"
        )
