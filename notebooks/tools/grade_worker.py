"""The process that runs one submission: cells and checks, in order. `notebooks.tools.submission` starts it.

Input, on stdin: one JSON object with `secret`, `result_fd`, `notebook`, `timeout`, `memory` (bytes), `checks` (more folders
with nbNN.py) and `steps`; when stdin ends, the grader is gone, and this process ends too. Output, on `result_fd`: one JSON
object per line. What the submission prints is discarded.
"""

import gc
import json
import os
import resource
import signal
import sys
import threading
from typing import Any

TEXT = 2000  # characters of a hint or an exception that are reported
MORE_MEMORY = 256 * 2**20  # bytes beyond the limit, to say that a cell has reached it


class OutOfTime(KeyboardInterrupt):
    """Raised inside a step that takes too long. No `except Exception` catches it."""


def main() -> None:
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_grader, args=[os.dup(0), os.killpg, signal.SIGKILL], daemon=True).start()
    with open(os.devnull) as null:
        os.dup2(null.fileno(), 0)
    limits = job["memory"], job["memory"] + MORE_MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, limits)
    results = os.fdopen(job["result_fd"], "w", buffering=1)
    process, getpid = os.getpid(), os.getpid

    def report(**message: Any) -> None:
        if getpid() != process:
            os._exit(0)  # a child that the submission has forked
        results.write("\n" + json.dumps({**message, "secret": job["secret"]}) + "\n")
        results.flush()

    gc.disable()  # importing takes a quarter less, and nothing of it is garbage
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    from notebooks.course import Hint, NotWritten, checks
    from notebooks.course.checking import run_check
    from notebooks.course.exercises import exercises_of
    from notebooks.course.expectations import CannotBeRead
    from notebooks.tools.intact import Intact, load_all

    checks.__path__.extend(job["checks"])
    exercises = {exercise.id: exercise for exercise in exercises_of(job["notebook"])}
    load_all()
    gc.freeze()
    gc.enable()
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    assert shell.display_formatter is not None
    shell.display_formatter.active_types = ["text/plain"]
    namespace = shell.user_module.__dict__
    kept = {id: dict(vars(exercise)) for id, exercise in exercises.items()}
    restore = Intact(exercise.checker for exercise in exercises.values()).restore
    armed = False
    ran: list[str] = []

    def too_late(signum: int, frame: object) -> None:
        if armed:
            raise OutOfTime

    def mark(id: str) -> dict[str, str]:
        restore()
        vars(exercises[id]).update(kept[id])  # who checks it: the code of its checker is what it was
        try:
            proved = run_check(exercises[id], namespace, ran)
        except CannotBeRead as hint:
            return {"outcome": "syntax error", "text": str(hint)[:TEXT]}
        except NotWritten as hint:
            return {"outcome": "not written", "text": str(hint)[:TEXT]}
        except Hint as hint:
            return {"outcome": "wrong", "text": str(hint)[:TEXT]}
        except OutOfTime:
            raise
        except BaseException as error:
            return {"outcome": "wrong", "text": f"raises {type(error).__name__}: {error}"[:TEXT]}
        return {"outcome": "passed", "text": proved if isinstance(proved, str) else ""}

    def make_room(*of_exception: object, tb_offset: int | None = None) -> None:
        """A cell has filled the memory: to say so takes some, too."""
        resource.setrlimit(resource.RLIMIT_DATA, (limits[1], limits[1]))

    shell.set_custom_exc((MemoryError,), make_room)
    set_timer, set_handler, alarm = signal.setitimer, signal.signal, signal.SIGALRM
    report(event="ready")
    for number, step in job["steps"]:
        report(event="start", step=number)
        set_handler(alarm, too_late)
        outcome: dict[str, str] = {}
        try:
            armed = True
            set_timer(signal.ITIMER_REAL, job["timeout"], 0.5)
            if "source" in step:
                ran.append(as_python(shell, step["source"]))
                result = shell.run_cell(step["source"], store_history=False)
                error = result.error_before_exec or result.error_in_exec
                if isinstance(error, OutOfTime):
                    outcome = {"outcome": "timeout"}
                elif isinstance(error, MemoryError):
                    outcome = {"outcome": "out of memory"}
                elif error is not None:
                    outcome = {"outcome": "raised", "text": f"{type(error).__name__}: {error}"[:TEXT]}
            else:
                outcome = mark(step["check"])
            armed = False
        except OutOfTime:
            armed = False
            outcome = {"outcome": "timeout"}
        except MemoryError:
            make_room()
            armed = False
            outcome = {"outcome": "out of memory"}
        set_timer(signal.ITIMER_REAL, 0)
        report(event="end", step=number, **outcome)
        if outcome.get("outcome") == "out of memory":
            os._exit(1)  # what fills the memory may live on: begin again without this cell
    report(event="done")
    results.close()
    os._exit(0)  # whatever threads the submission has left


def as_python(shell: Any, source: str) -> str:
    """A cell's text with its magics (`%time`, `!ls`, `name?`) as the Python that IPython makes of them; as it is when
    IPython cannot read it, which running it will tell."""
    try:
        return str(shell.transform_cell(source))
    except Exception:  # SyntaxError and its relatives, and whatever a transformation of the submission's own raises
        return source


def _end_with_grader(stdin: int, killpg: Any, kill: int) -> None:
    """Wait until the grader closes its end of `stdin` (or dies); then end this process and all that it started."""
    while os.read(stdin, 1024):
        pass
    killpg(0, kill)


if __name__ == "__main__":
    main()
