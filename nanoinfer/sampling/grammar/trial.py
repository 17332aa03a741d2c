"""Trials: a grammar is first compiled in a helper process, which may die of it. This file is also that process's program.

llguidance compiles by recursion, so a long chain of names overflows any stack, which ends the process; and a few lines of
Lark can double a terminal again and again, which may take any time and memory. What the helper survives is compiled again
in the process that serves: compiling takes the same way every time, and has twice the stack there.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from typing import Any

STACK_BYTES = 64 * 2**20  # of a thread that compiles; only what is used of it takes memory
STEP_STACK_BYTES = 256 * 1024  # what follows a grammar is any thread, such as one of the caller's with a small stack
STEPS = 8  # tokens that are written after compiling, as it is only then that some grammars turn out to be too large
CPU_S = 3  # of the helper's computing time, for each grammar
MEMORY_BYTES = 2 * 2**30  # of the helper's address space
MAX_IDLE = 2  # helpers that are kept for the next grammar
PROGRAM = (sys.executable, "-I", "-S", __file__)  # isolated, and without torch, it starts in a tenth of a second

_SPECIAL = re.compile(r"(?<![?P])<(?:\[[^\]]*\]|[|\w]+)>")  # in Lark; what stands before may be a group's name

_stack_size = threading.Lock()  # the size of stacks is a setting of the whole process


class Trials:
    """Helper processes: each tries one grammar after another, until one ends it. May be used by any thread. `program`: the
    helper's command."""

    def __init__(self, program: Sequence[str] = PROGRAM):
        self.program = program
        self._idle: list[subprocess.Popen[str]] = []

    def failure(self, text: str, limits: Mapping[str, Any], seconds: float) -> str:
        """Why the grammar `text` cannot be compiled; empty if it can. TimeoutError if that is not known in `seconds`. The
        helper has another vocabulary, so any special token stands for each."""
        text = _SPECIAL.sub("<[0]>", text)
        try:
            helper = self._idle.pop()
        except IndexError:
            helper = self._started()
        assert helper.stdin is not None
        assert helper.stdout is not None
        try:
            with suppress(BrokenPipeError):  # it has died, and does not answer
                helper.stdin.write(json.dumps([text, dict(limits)]) + "\n")
                helper.stdin.flush()
            if not wait([helper.stdout.fileno()], seconds):
                raise TimeoutError
            answer = helper.stdout.readline()
        except BaseException:
            _end(helper)
            raise
        if answer and len(self._idle) < MAX_IDLE:
            self._idle.append(helper)
            return ""
        status = _end(helper)
        if answer:
            return ""
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        return f"is too deep or too large: compiling it takes more stack, memory or time than is safe ({how})"

    def close(self) -> None:
        """End the helpers that are idle."""
        while self._idle:
            _end(self._idle.pop())

    def _started(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*self.program, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C is for this process
        )


def _end(helper: "subprocess.Popen[str]") -> int:
    """Kill a helper, if it has not died already. Returns its exit status."""
    helper.kill()
    for pipe in (helper.stdin, helper.stdout):
        with suppress(BrokenPipeError):  # what was written and not read
            assert pipe is not None
            pipe.close()
    return helper.wait()


def in_thread(function: Callable[[], None], stack_bytes: int = STACK_BYTES, seconds: float | None = None) -> None:
    """Call `function`, which must not raise, in a thread with such a stack, and wait for it: at most `seconds`, and then it
    goes on alone."""
    thread = threading.Thread(target=function, name="nanoinfer-grammar")
    with _stack_size:
        before = threading.stack_size(stack_bytes)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join(seconds)


# --- the helper ------------------------------------------------------------------------------------------------------


def main() -> None:
    sys.path[:] = sys.argv[1:]
    import llguidance

    for line in sys.stdin:
        text, limits = json.loads(line)
        _limit()
        made: list[Any] = []
        in_thread(partial(_compile, llguidance, text, limits, made), STACK_BYTES // 2)
        in_thread(partial(_follow, made), STEP_STACK_BYTES)
        print("survived", flush=True)  # the compiler's verdict will be the same in the process that waits


def _limit() -> None:
    with suppress(ImportError, ValueError, OSError):  # not every system has these limits
        import resource

        most = int(sum(os.times()[:2])) + 1 + CPU_S
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def _compile(llguidance: Any, text: str, limits: dict[str, Any], made: list[Any]) -> None:
    with suppress(BaseException):
        tokenizer, parser_limits = llguidance.LLTokenizer("byte"), llguidance.LLParserLimits(**limits)
        made.append(llguidance.LLMatcher(tokenizer, text, log_level=0, limits=parser_limits))


def _follow(made: list[Any]) -> None:
    with suppress(BaseException):
        for step in range(STEPS):
            mask = made[0].compute_bitmask()
            allowed = [i for i in range(256) if mask[i // 8] >> i % 8 & 1]
            made[0].compute_ff_tokens()
            if made[0].is_error() or not made[0].consume_token(allowed[step % len(allowed)]):
                return


if __name__ == "__main__":
    main()
