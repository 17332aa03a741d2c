"""The process that runs one submission: cells and checks, in order. Started by `notebooks.submission`, which see.

Input, on stdin: one JSON object with `secret`, `result_fd`, `notebook`, `timeout`, `checks` (more folders with nbNN.py) and
`steps`. Output, on `result_fd`: one JSON object a line. What the submission prints goes nowhere.
"""

import json
import os
import signal
import sys
from typing import Any


class OutOfTime(KeyboardInterrupt):
    """Raised inside a step that takes too long. No `except Exception` catches it."""


def main() -> None:
    job = json.loads(sys.stdin.readline())
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    results = os.fdopen(job["result_fd"], "w", buffering=1)

    def tell(**message: Any) -> None:
        results.write(json.dumps({**message, "secret": job["secret"]}) + "\n")
        results.flush()

    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    from nanoinfer.teaching import Hint, NotWritten, checks
    from nanoinfer.teaching.checking import run_check
    from nanoinfer.teaching.exercises import exercises_of
    from notebooks.intact import Intact, load_all

    checks.__path__.extend(job["checks"])
    exercises = {exercise.id: exercise for exercise in exercises_of(job["notebook"])}
    load_all()
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    assert shell.display_formatter is not None
    shell.display_formatter.active_types = ["text/plain"]
    namespace = shell.user_module.__dict__
    intact = Intact(exercise.checker for exercise in exercises.values())
    armed = False

    def too_late(signum: int, frame: object) -> None:
        if armed:
            raise OutOfTime

    def mark(id: str) -> dict[str, str]:
        intact.restore()
        try:
            proved = run_check(exercises[id], namespace)
        except NotWritten as hint:
            return {"outcome": "not written", "text": str(hint)}
        except Hint as hint:
            return {"outcome": "wrong", "text": str(hint)}
        except OutOfTime:
            raise
        except BaseException as error:
            return {"outcome": "wrong", "text": f"raises {type(error).__name__}: {error}"}
        return {"outcome": "passed", "text": proved if isinstance(proved, str) else ""}

    set_timer, set_handler, alarm = signal.setitimer, signal.signal, signal.SIGALRM
    tell(event="ready")
    for number, step in job["steps"]:
        tell(event="start", step=number)
        set_handler(alarm, too_late)
        outcome: dict[str, str] = {}
        try:
            armed = True
            set_timer(signal.ITIMER_REAL, job["timeout"], 0.5)
            if "source" in step:
                result = shell.run_cell(step["source"], store_history=False)
                error = result.error_before_exec or result.error_in_exec
                if isinstance(error, OutOfTime):
                    outcome = {"outcome": "timeout"}
                elif error is not None:
                    outcome = {"outcome": "raised", "text": type(error).__name__ + f": {error}"[:500]}
            else:
                outcome = mark(step["check"])
            armed = False
        except OutOfTime:
            armed = False
            outcome = {"outcome": "timeout"}
        set_timer(signal.ITIMER_REAL, 0)
        tell(event="end", step=number, **outcome)
    tell(event="done")
    results.close()
    os._exit(0)  # whatever threads the submission has left


if __name__ == "__main__":
    main()
