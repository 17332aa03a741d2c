"""One submission: the processes that run and check it."""

import ast
import contextlib
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from notebooks.course.exercises import exercises_of, notebook_of
from notebooks.tools.files import ROOT, NoNotebook, read, source_of
from notebooks.tools.student import checked_ids, exercise_ids, number_of

GRACE = 3.0  # seconds that a step has, after its time, to stop by itself
START_SECONDS = 120.0  # for a process to import everything, on a machine that is busy
MAX_STARTS = 20
MESSAGE = 1 << 20  # bytes of a message; what is longer is none


@dataclass
class Step:
    """One thing to do: run a cell's `source`, or check the exercise `check`. `cell` counts from 1."""

    cell: int
    source: str | None = None
    check: str | None = None


def plan(notebook: dict[str, Any], name: str) -> tuple[int | None, list[Step]]:
    """Which notebook of the series this is, by its exercises (else by its file's name), and the steps to take.

    A check stands where its cell stands, since later cells may give a name another meaning. Where none stands
    behind an exercise, one follows it; a check whose cell and exercise are both gone comes last.
    """
    cells = [(i, cell) for i, cell in enumerate(notebook["cells"], 1) if cell.get("cell_type") == "code"]
    there = []
    for _, cell in cells:
        tagged = exercise_ids(cell, "exercise"), exercise_ids(cell, "check")
        there.append((tagged[0], list(dict.fromkeys([*tagged[1], *checked_ids(source_of(cell))]))))
    votes = Counter(notebook_of(id) for ids in there for id in {*ids[0], *ids[1]})
    number = votes.most_common(1)[0][0] if votes else number_of(name)
    wanted = [exercise.id for exercise in exercises_of(number)] if number is not None else []
    if not wanted:
        return None, []
    last_check = {id: i for (i, _), (_, checks) in zip(cells, there, strict=True) for id in checks}
    steps, placed = [], set[str](last_check)
    for (i, cell), (written, checks) in zip(cells, there, strict=True):
        source = source_of(cell)
        if source.strip() and not (checks and _only_checks(source)):
            steps.append(Step(i, source=source))
        missing = [id for id in written if last_check.get(id, 0) < i]
        placed |= set(missing)
        steps += [Step(i, check=id) for id in [*checks, *missing] if id in wanted]
    last = cells[-1][0] if cells else 0
    return number, steps + [Step(last, check=id) for id in wanted if id not in placed]


def _only_checks(source: str) -> bool:
    """Whether a cell does nothing but call `check`."""
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return False
    return all(
        isinstance(s, ast.Expr)
        and isinstance(s.value, ast.Call)
        and isinstance(s.value.func, ast.Name)
        and s.value.func.id == "check"
        for s in body
    )


@dataclass
class Graded:
    """What came of one submission. `outcomes`: exercise → "passed", "wrong", "not written", "syntax error", "timeout",
    "crashed", "out of memory" or "not reached"; `texts`: exercise → the hint; `raised`: cell → its exception; `notes`: what
    went wrong elsewhere."""

    name: str
    notebook: int | None = None
    outcomes: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    raised: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def grade(
    path: Path,
    *,
    timeout: float,
    total: float,
    memory: float = 4.0,
    checks: Sequence[Path] = (),
) -> Graded:
    """Run and check one submission. `timeout`: seconds for a cell or a check; `total`: for all of it, starts included;
    `memory`: GiB that its process may have (on Linux); `checks`: more folders with nbNN.py.

    Nothing a submission does raises here: what cannot be read or run is noted, and costs the exercises it concerns.
    """
    graded = Graded(path.name)
    try:
        graded.notebook, steps = plan(read(path), path.stem)
    except NoNotebook as error:
        graded.notes.append(f"cannot be read: {error.reason}")
        return graded
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        graded.notes.append(f"cannot be read ({type(error).__name__})")
        return graded
    if graded.notebook is None:
        graded.notes.append("holds no exercise")
        return graded
    limits = {"timeout": timeout, "memory": int(memory * 2**30)}
    _Run(graded, steps, limits, time.monotonic() + total, checks).to_the_end()
    for exercise in exercises_of(graded.notebook):
        graded.outcomes.setdefault(exercise.id, "not reached")
    return graded


class _Run:
    """Processes, one after another, until every step has been taken: each begins again without what killed the last."""

    def __init__(
        self, graded: Graded, steps: list[Step], limits: dict[str, float], deadline: float, checks: Sequence[Path]
    ):
        self.graded, self.steps, self.limits, self.deadline, self.checks = graded, steps, limits, deadline, checks
        self.skipped: set[int] = set()

    def to_the_end(self) -> None:
        for _ in range(MAX_STARTS):
            remaining = [
                (i, step)
                for i, step in enumerate(self.steps)
                if i not in self.skipped and self.graded.outcomes.get(step.check or "") != "passed"
            ]
            if not any(step.check for _, step in remaining):
                return
            with tempfile.TemporaryDirectory(prefix="grade-", ignore_cleanup_errors=True) as folder:
                if not self._one_process(remaining, folder):
                    return
        self.graded.notes.append(f"given up after {MAX_STARTS} processes")

    def _one_process(self, remaining: list[tuple[int, Step]], folder: str) -> bool:
        """Take the remaining steps in a new process; True when it died on the way, and another start makes sense."""
        reading, writing = os.pipe()
        secret = secrets.token_hex()
        job = {
            "secret": secret,
            "result_fd": writing,
            "notebook": self.graded.notebook,
            **self.limits,
            "checks": [str(folder) for folder in self.checks],
            "steps": [(i, {"source": s.source} if s.check is None else {"check": s.check}) for i, s in remaining],
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "notebooks.tools.grade_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=worker_environment(folder),
            pass_fds=[writing],
            start_new_session=True,
        )
        os.close(writing)
        assert process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(job).encode() + b"\n")
                process.stdin.flush()  # and stays open: its end would be the process's end
            return self._follow(_Lines(reading, secret))
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            os.close(reading)

    def _follow(self, lines: "_Lines") -> bool:
        """Read what a process tells until it ends. True when it died in a step."""
        current: int | None = None
        until = time.monotonic() + START_SECONDS
        while True:
            message = lines.next(min(until, self.deadline))
            if message is None:
                ended = lines.ended
                if not ended and time.monotonic() >= self.deadline:
                    self.graded.notes.append("no time left" + self._in(current))
                    return False
                if current is None:
                    self.graded.notes.append("its process could not be started")
                    return False
                if current not in self.skipped:
                    self._over(current, "crashed" if ended else "timeout")
                self.skipped.add(current)
                return True
            if message["event"] == "done":
                return False
            if message["event"] == "start":
                current = message["step"]
                until = time.monotonic() + self.limits["timeout"] + GRACE
            elif message["event"] == "end" and message["step"] == current:
                if "outcome" in message:
                    self._over(message["step"], message["outcome"], printable(message.get("text", "")))
                if message.get("outcome") == "out of memory":
                    self.skipped.add(message["step"])
                until = time.monotonic() + GRACE + self.limits["timeout"]

    def _over(self, number: int, outcome: str, text: str = "") -> None:
        """Note how a step ended; a check that has once been passed stays so."""
        step = self.steps[number]
        if step.check is None:
            if outcome == "raised":
                self.graded.raised[step.cell] = text
                return
            note = f"{outcome}{self._in(number)}"
            if note not in self.graded.notes:
                self.graded.notes.append(note)
        elif self.graded.outcomes.get(step.check) != "passed":
            self.graded.outcomes[step.check] = outcome
            self.graded.texts[step.check] = text

    def _in(self, number: int | None) -> str:
        if number is None:
            return ""
        step = self.steps[number]
        return f" in {f'check {step.check}' if step.check else f'cell {step.cell}'}"


class _Lines:
    """Messages from a process, each on its line, without ever waiting longer than until a given time."""

    def __init__(self, fd: int, secret: str):
        self._fd, self._secret, self._buffer, self.ended = fd, secret, b"", False

    def next(self, until: float) -> dict[str, Any] | None:
        """The next message; None when there is none until then, or (`ended`) never will be."""
        while True:
            line, newline, rest = self._buffer.partition(b"\n")
            if newline:
                self._buffer = rest
                with contextlib.suppress(ValueError, AttributeError):
                    message = json.loads(line)
                    if message.pop("secret", None) == self._secret:
                        return dict(message)
                continue
            left = until - time.monotonic()  # asked here as well: there may be no end to what can be read
            if left <= 0 or not select.select([self._fd], [], [], left)[0]:
                return None
            read = os.read(self._fd, 1 << 16)
            if not read:
                self.ended = True
                return None
            self._buffer = (self._buffer + read)[-MESSAGE:]


def printable(text: str) -> str:
    """`text` with a question mark for whatever a terminal would obey or no file could hold; line ends stay."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


def worker_environment(folder: str) -> dict[str, str]:
    """One thread, no network, nothing of the user's IPython, and nanoinfer from this checkout; modules never from
    `folder`, where the submission works."""
    settings = {
        "PYTHONPATH": str(ROOT),
        "PYTHONSAFEPATH": "1",
        "IPYTHONDIR": folder,
        "MPLBACKEND": "agg",
        "HF_HUB_OFFLINE": "1",
    }
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return {**os.environ, **settings, **threads, "TQDM_DISABLE": "1", "PYTHONUNBUFFERED": "1"}
