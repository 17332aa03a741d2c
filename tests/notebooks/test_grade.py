"""The grader: marks for what is right, whatever else a submission does; what cheats earns nothing, and what hangs, floods,
crashes or outlives its grader costs only itself."""

import os
import select
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from notebooks.course.exercises import find
from notebooks.grade import notes, points
from notebooks.tools import submission
from notebooks.tools.files import ROOT
from notebooks.tools.submission import GRACE, Graded, grade
from tests.helpers.waiting import HANG_S, until
from tests.sample_series import code, save, series

pytestmark = pytest.mark.usefixtures("checks_folder")

IDS = ["90.1", "90.2", "90.3"]


def graded(checks: Path, folder: Path, content: dict[str, Any], **settings: Any) -> Graded:
    """Grade `content`, saved in `folder`, with the checks in `checks`."""
    limits = {"timeout": HANG_S, "total": 20 * HANG_S, **settings}
    return grade(save(folder, "90_sample.ipynb", content), checks=[checks], **limits)


def outcomes(result: Graded) -> list[str]:
    """What came of the three exercises."""
    return [result.outcomes[id] for id in IDS]


# A submission's lines: what is left of the time for its cell or check is over at once, if that time was set at all.
TIME_FLIES = (
    f"import signal\nsignal.setitimer({signal.ITIMER_REAL}, signal.getitimer({signal.ITIMER_REAL})[0] and 0.001)"
)


class GradersClock:
    """The grader's clock, in place of the real one: it goes on by a second whenever the grader looks at it, and by `leap`
    seconds whenever a submission says that it hangs. Until then the grader waits for messages, however long they take.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, leap: float = HANG_S + GRACE):
        self._told, self._leap, self._looks, self._leapt = folder / "hangs", leap, count(), 0.0
        self.hangs = f"open({str(self._told)!r}, 'w').close()"  # what a submission says
        monkeypatch.setattr(submission, "time", SimpleNamespace(monotonic=self._now))
        monkeypatch.setattr(submission, "select", SimpleNamespace(select=self._select))

    def _now(self) -> float:
        return next(self._looks) + self._leapt

    def _select(self, reading: list[int], *_: Any) -> tuple[list[int], list[int], list[int]]:
        until(lambda: select.select(reading, [], [], 0)[0] or self._told.exists(), "a message of the submission")
        ready = select.select(reading, [], [], 0)  # asked again: what it said before it hung comes first
        if not ready[0]:
            self._told.unlink()
            self._leapt += self._leap
        return ready


@pytest.mark.slow
def test_right_wrong_and_unwritten_exercises_are_told_apart(checks_folder: Path, tmp_path: Path) -> None:
    """The wrong one is right in a forked child, which comes to its end before its parent does: that earns nothing."""
    unwritten = 'def rows(pool, n):\n    raise NotImplementedError("exercise 90.3")'
    wrong = (
        "import os\nchild = os.fork()\nfactor = 2 if child == 0 else os.waitpid(child, 0) and 3\n"
        "def twice(n):\n    return factor * n"
    )
    result = graded(checks_folder, tmp_path, series({"90.2": wrong, "90.3": unwritten}))
    assert outcomes(result) == ["passed", "wrong", "not written"]
    assert "Twice 4 is 8." in result.texts["90.2"]
    assert result.texts["90.1"] == "3 free, 2 taken"
    assert (result.notes, result.raised) == ([], {})
    assert notes(result) == "90.2 wrong; 90.3 not written"


@pytest.mark.slow
def test_a_cell_that_python_cannot_read_is_told_from_one_that_ipython_can(checks_folder: Path, tmp_path: Path) -> None:
    sources = {
        "90.1": "def lowest(free, n)\n    return sorted(free)[:n]",
        "90.2": "!true\ndef twice(number):\n    return 3 * number",
        "90.3": "def rows(pool, n):\n        left = n % 2\n    return left",
    }
    result = graded(checks_folder, tmp_path, series(sources))
    assert outcomes(result) == ["syntax error", "wrong", "syntax error"]
    assert "line 1 of its cell: def lowest(free, n)\n  SyntaxError: expected ':'" in result.texts["90.1"]
    assert "line 3" in result.texts["90.3"]
    assert notes(result) == "90.1, 90.3 syntax error; 90.2 wrong"


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux limits the memory of a process")
def test_running_out_of_memory_costs_only_the_cell_that_does(checks_folder: Path, tmp_path: Path) -> None:
    content = series()
    content["cells"].insert(2, code("kept = []\nwhile True:\n    kept.append(bytes(10**7))"))
    result = graded(checks_folder, tmp_path, content, memory=1.5)
    assert outcomes(result) == ["passed"] * 3
    assert result.notes == ["out of memory in cell 3"]


@pytest.mark.slow
def test_the_solutions_of_a_notebook_of_the_series_get_full_marks() -> None:
    path = ROOT / "notebooks" / "solutions" / "09_the_life_of_a_slot.ipynb"
    result = grade(path, timeout=HANG_S, total=20 * HANG_S)
    assert set(result.outcomes.values()) == {"passed"}, result
    assert (result.notes, result.raised) == ([], {})


def test_points_are_all_or_none() -> None:
    result = Graded("a", 90, {"90.1": "passed", "90.2": "wrong"})
    assert [points(result, find(id)) for id in IDS] == [2, 0, 0]


CHEATS = {
    "redefines check and expect": "def check(*args): print('right')\nexpect = expect_equal = check",
    "patches the checker's helpers": """
import notebooks.course.expectations as e, notebooks.course.exercises as x, notebooks.course.checking as c
import notebooks.course.checks.nb90 as nb
e.expect = nb.expect = nb.expect_equal = lambda *args, **kwargs: None
c.run_check = lambda *args: "right"
e.difference.__code__ = (lambda *args: None).__code__
nb.sorted = None
for exercise in x._exercises.values():
    exercise.checker.__code__ = (lambda given: "right").__code__
x._exercises.clear()
import sys
sys.modules["notebooks.course"] = sys
""",
    "has others check": """
from notebooks.course import exercises
for each in exercises._exercises.values():
    object.__setattr__(each, "checker", lambda given: "right")
""",
    "patches what is compared": """
import builtins, numpy, torch
builtins.zip = lambda *args, **kwargs: []
builtins.isinstance = lambda *args: True
numpy.isclose = torch.equal = lambda *args: True
from nanoinfer.cache.memory_pool import ReqToTokenPool
ReqToTokenPool.alloc = lambda self, n: torch.tensor([0, 1])
""",
    "patches what puts things back": """
import builtins, notebooks.tools.intact
notebooks.tools.intact.Intact.restore = notebooks.tools.intact._set = lambda *args: None
builtins.setattr = builtins.delattr = lambda *args: None
builtins.vars = lambda *args: {}
import notebooks.course.checks.nb90 as nb
nb.expect = nb.expect_equal = lambda *args, **kwargs: None
""",
    "forges the marks": """
import json, os
for fd in range(3, 64):
    for id in ("90.1", "90.2", "90.3"):
        for step in range(12):
            try:
                os.write(fd, (json.dumps(
                    {"event": "end", "step": step, "outcome": "passed", "text": "", "secret": ""}) + "\\n").encode())
            except OSError:
                pass
""",
}


@pytest.mark.slow
def test_cheating_and_outputs_earn_nothing(checks_folder: Path, tmp_path: Path) -> None:
    """All checks follow each of the cheats, and one that passed only once would stay passed."""
    wrong = {
        "90.1": "def lowest(free, n):\n    return [2, 3]",
        "90.2": "def twice(number):\n    return 0",
        "90.3": "def rows(pool, n):\n    return pool.alloc(n).tolist()[::-1]",
    }
    content = series(wrong)
    for cell, title in ((3, "90.1 The lowest first"), (5, "90.2 Twice as much"), (7, "90.3 Rows of a pool")):
        content["cells"][cell]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": [f"✓ {title}\n"]}]
    for cheat in CHEATS.values():
        content["cells"] += [code(cheat), *(code(f'check("{id}", globals())', f"check-{id}") for id in IDS)]
    result = graded(checks_folder, tmp_path, content)
    assert outcomes(result) == ["wrong"] * 3, result
    assert result.raised == {}, "each cheat has done what it can"


@pytest.mark.slow
def test_a_right_answer_counts_beside_any_cheat(checks_folder: Path, tmp_path: Path) -> None:
    content = series()
    content["cells"][2:2] = [code(cheat) for cheat in CHEATS.values()]
    assert outcomes(graded(checks_folder, tmp_path, content)) == ["passed"] * 3


@pytest.mark.slow
def test_endless_loops_and_crashes_cost_only_themselves(
    checks_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check's loop is ended by its process, a cell that ends for nothing by the grader; what a killed process leaves
    does not meet the next."""
    clock = GradersClock(monkeypatch, tmp_path)
    content = series(
        {
            "90.1": f"def lowest(free, n):\n    exec({TIME_FLIES!r})\n    while True:\n        pass",
            "90.2": "import os, shutil\ndef twice(number):\n    shutil.rmtree(os.getcwd())\n    os._exit(3)",
        }
    )
    stubborn = f"while True:\n    try:\n        exec({TIME_FLIES!r})\n        while True: pass\n    except:\n"
    content["cells"].insert(2, code(stubborn + f"        {clock.hangs}\n        while True: pass"))
    crash = "import ctypes\nopen('json.py', 'w').write('raise SystemExit')\nctypes.string_at(0)"
    content["cells"].insert(3, code(crash))
    content["cells"].insert(4, code("raise ValueError('nobody minds')"))
    result = graded(checks_folder, tmp_path, content, total=1e9)
    assert outcomes(result) == ["timeout", "crashed", "passed"]
    assert result.notes == ["timeout in cell 3", "crashed in cell 4"]
    assert result.raised == {5: "ValueError: nobody minds"}


@pytest.mark.slow
def test_the_time_for_all_ends_it_and_keeps_the_marks(
    checks_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = 100 * HANG_S
    clock = GradersClock(monkeypatch, tmp_path, leap=total)
    content = series({"90.3": f"{clock.hangs}\nwhile True: pass\ndef rows(pool, n): ..."})
    result = graded(checks_folder, tmp_path, content, timeout=2 * total, total=total)
    assert outcomes(result) == ["passed", "passed", "not reached"]
    assert result.notes == ["no time left in cell 7"]


@pytest.mark.slow
def test_a_flood_of_messages_and_endless_texts_change_nothing_else(
    checks_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flood goes on until the grader has looked at its clock too often."""
    GradersClock(monkeypatch, tmp_path)
    flood = """
import os
def write(fd):
    while True:
        try:
            os.write(fd, b"x" * 65536)
        except OSError:
            return
        except KeyboardInterrupt:
            pass
for fd in range(3, 64):
    write(fd)
"""
    endless = "def lowest(free, n):\n    raise ValueError('\\udcff\\x1b[2J' + 10**6 * 'x')"
    content = series({"90.1": endless})
    content["cells"].insert(3, code(flood))
    result = graded(checks_folder, tmp_path, content, total=1e9)
    assert outcomes(result) == ["wrong", "passed", "passed"]
    assert result.notes == ["timeout in cell 4"]
    assert len(result.texts["90.1"]) < 3000
    assert "your code raises ValueError: ??[2J" in result.texts["90.1"], "as it can be printed anywhere"


def _runs(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
@pytest.mark.slow
def test_no_submission_outlives_a_grader_that_is_killed(checks_folder: Path, tmp_path: Path) -> None:
    content = series()
    endless = "import os\nopen(os.environ['TOLD'], 'w').write(f'{os.getpid()}\\n')\n"
    endless += "while True:\n    try:\n        while True: pass\n    except BaseException:\n        pass"
    content["cells"].insert(2, code(endless))
    path, report = save(tmp_path, "90_sample.ipynb", content), tmp_path / "report"
    grader = subprocess.Popen(
        [sys.executable, "-m", "notebooks.grade", str(path), "--checks", str(checks_folder)],
        cwd=ROOT,
        env={**os.environ, "TOLD": str(report), "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
    )
    try:
        until(lambda: report.exists() and report.read_text().endswith("\n"), "the cell's report")
    finally:
        grader.kill()
        grader.wait()
    until(lambda: not _runs(int(report.read_text())), "the submission's end")
