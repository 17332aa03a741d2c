"""What the helper process of trial.py runs. It imports llguidance, nothing of this package and no torch: it starts in a
tenth of a second, and whatever happens to it happens to it alone."""

import json
import os
import sys
import threading
from contextlib import suppress
from typing import Any

STEPS = 8  # tokens that are written after compiling
STEP_STACK_BYTES = 256 * 1024  # what follows a grammar is any thread, such as one of the caller's with a small stack


def main() -> None:
    job = json.load(sys.stdin)
    sys.path[:] = job["path"]
    _limit(job)
    import llguidance

    made: list[Any] = []
    _in_thread(job["stack_bytes"], lambda: made.append(_compile(llguidance, job)))
    _in_thread(STEP_STACK_BYTES, lambda: _follow(made[0]))
    os._exit(0)  # the compiler's verdict, if it has one, will be the same in the process that waits


def _limit(job: dict[str, Any]) -> None:
    with suppress(ImportError, ValueError, OSError):  # not every system has these limits
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (job["cpu_s"], job["cpu_s"] + 1))
        resource.setrlimit(resource.RLIMIT_AS, (job["memory_bytes"], job["memory_bytes"]))


def _in_thread(stack_bytes: int, function: Any) -> None:
    threading.stack_size(stack_bytes)
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def _compile(llguidance: Any, job: dict[str, Any]) -> Any:
    with suppress(BaseException):
        limits = llguidance.LLParserLimits(**job["limits"])
        return llguidance.LLMatcher(llguidance.LLTokenizer("byte"), job["text"], log_level=0, limits=limits)
    return None


def _follow(matcher: Any) -> None:
    for step in range(STEPS if matcher is not None else 0):
        with suppress(BaseException):
            mask = matcher.compute_bitmask()
            allowed = [i for i in range(256) if mask[i // 8] >> i % 8 & 1]
            matcher.compute_ff_tokens()
            if matcher.is_error() or not allowed or not matcher.consume_token(allowed[step % len(allowed)]):
                return


if __name__ == "__main__":
    main()
