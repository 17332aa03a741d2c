"""The grader: marks for what is right, whatever else a submission does."""

import csv
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nanoinfer.teaching import checks
from notebooks.grade import main, notes, points
from notebooks.tools.files import ROOT
from notebooks.tools.needed import needed
from notebooks.tools.steps import plan
from notebooks.tools.student import student_notebook
from notebooks.tools.submission import Graded, grade
from tests.sample_series import SOLUTIONS, code, notebook, save, save_checks, series

TITLES = ["90.1", "90.2", "90.3"]


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the checks of notebook 90, known to this process too."""
    path = save_checks(tmp_path_factory.mktemp("checks"))
    checks.__path__.append(str(path))
    yield path
    checks.__path__.remove(str(path))


def graded(folder: Path, tmp_path: Path, content: dict[str, Any], *, timeout: float = 30, total: float = 150) -> Graded:
    return grade(save(tmp_path, "90_sample.ipynb", content), timeout=timeout, total=total, checks=[folder])


def outcomes(result: Graded) -> list[str]:
    return [result.outcomes[id] for id in TITLES]


def test_right_wrong_and_unwritten_exercises_are_told_apart(folder: Path, tmp_path: Path) -> None:
    unwritten = 'def rows(pool, n):\n    raise NotImplementedError("exercise 90.3")'
    wrong = "def twice(number):\n    return 3 * number"
    result = graded(folder, tmp_path, series({"90.2": wrong, "90.3": unwritten}))
    assert outcomes(result) == ["passed", "wrong", "not written"]
    assert "Twice 4 is 8." in result.texts["90.2"]
    assert result.texts["90.1"] == "3 free, 2 taken"
    assert result.notes == []
    assert notes(result) == "90.2 wrong; 90.3 not written"


def test_the_generated_student_notebook_gets_nothing(folder: Path, tmp_path: Path) -> None:
    result = graded(folder, tmp_path, student_notebook(series(), "90_sample"))
    assert outcomes(result) == ["not written"] * 3


def test_endless_loops_and_crashes_cost_only_themselves(folder: Path, tmp_path: Path) -> None:
    endless = "def lowest(free, n):\n    while True:\n        pass"
    content = series({"90.1": endless, "90.2": "import os\ndef twice(number):\n    os._exit(3)"})
    content["cells"].insert(2, code("while True:\n    try:\n        while True: pass\n    except:\n        pass"))
    content["cells"].insert(3, code("import ctypes\nctypes.string_at(0)"))
    content["cells"].insert(4, code("raise ValueError('nobody minds')"))
    result = graded(folder, tmp_path, content, timeout=4)
    assert outcomes(result) == ["timeout", "crashed", "passed"]
    assert result.notes == ["timeout in cell 3", "crashed in cell 4"]
    assert result.raised == {5: "ValueError: nobody minds"}


def test_the_time_for_all_ends_it_and_keeps_the_marks(folder: Path, tmp_path: Path) -> None:
    sleep = "import time\ntime.sleep(600)\ndef rows(pool, n): ..."
    result = graded(folder, tmp_path, series({"90.3": sleep}), timeout=500, total=20)
    assert outcomes(result) == ["passed", "passed", "not reached"]
    assert result.notes == ["no time left in cell 7"]


def test_what_a_killed_process_leaves_does_not_meet_the_next(folder: Path, tmp_path: Path) -> None:
    content = series()
    content["cells"][2:2] = [
        code("open('json.py', 'w').write('raise SystemExit')\nimport os\nos._exit(3)"),
        code("import os, shutil\nshutil.rmtree(os.getcwd())\nos._exit(3)"),
    ]
    result = graded(folder, tmp_path, content)
    assert outcomes(result) == ["passed"] * 3
    assert result.notes == ["crashed in cell 3", "crashed in cell 4"]


def test_a_forked_child_earns_nothing(folder: Path, tmp_path: Path) -> None:
    twice = (
        "import os, time\nfactor = 2 if os.fork() == 0 else time.sleep(1) or 3\ndef twice(n):\n    return factor * n"
    )
    assert outcomes(graded(folder, tmp_path, series({"90.2": twice}))) == ["passed", "wrong", "passed"]


def test_a_flood_of_messages_and_endless_texts_change_nothing_else(folder: Path, tmp_path: Path) -> None:
    flood = """
import os, threading
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
    result = graded(folder, tmp_path, content, timeout=4, total=60)
    assert outcomes(result) == ["wrong", "passed", "passed"]
    assert result.notes == ["timeout in cell 4"]
    assert len(result.texts["90.1"]) < 3000
    assert "your code raises ValueError: ??[2J" in result.texts["90.1"], "as it can be printed anywhere"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux limits the memory of a process")
def test_running_out_of_memory_costs_only_the_cell_that_does(folder: Path, tmp_path: Path) -> None:
    content = series()
    content["cells"].insert(2, code("kept = []\nwhile True:\n    kept.append(bytearray(10**7))"))
    path = save(tmp_path, "90_sample.ipynb", content)
    result = grade(path, timeout=30, total=150, memory=1.5, checks=[folder])
    assert outcomes(result) == ["passed"] * 3
    assert result.notes == ["out of memory in cell 3"]


CHEATS = {
    "redefines check and expect": "def check(*args): print('right')\nexpect = expect_equal = check",
    "patches the checker's helpers": """
import nanoinfer.teaching.expectations as e, nanoinfer.teaching.exercises as x, nanoinfer.teaching.checking as c
import nanoinfer.teaching.checks.nb90 as nb
e.expect = nb.expect = nb.expect_equal = lambda *args, **kwargs: None
c.run_check = lambda *args: "right"
e._difference.__code__ = (lambda *args: None).__code__
nb.sorted = None
for exercise in x._exercises.values():
    exercise.checker.__code__ = (lambda given: "right").__code__
x._exercises.clear()
import sys
sys.modules["nanoinfer.teaching"] = sys
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
import nanoinfer.teaching.checks.nb90 as nb
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


@pytest.mark.parametrize("cheat", CHEATS)
def test_cheating_earns_nothing(folder: Path, tmp_path: Path, cheat: str) -> None:
    wrong = {
        "90.1": "def lowest(free, n):\n    return [2, 3]",
        "90.2": "def twice(number):\n    return 0",
        "90.3": "def rows(pool, n):\n    return pool.alloc(n).tolist()[::-1]",
    }
    content = series(wrong)
    content["cells"].insert(2, code(CHEATS[cheat]))
    result = graded(folder, tmp_path, content)
    assert outcomes(result) == ["wrong"] * 3, result


def test_a_right_answer_counts_beside_any_cheat(folder: Path, tmp_path: Path) -> None:
    content = series()
    content["cells"].insert(2, code("\n".join(CHEATS.values())))
    assert outcomes(graded(folder, tmp_path, content)) == ["passed"] * 3


def test_outputs_earn_nothing(folder: Path, tmp_path: Path) -> None:
    content = series({"90.1": "def lowest(free, n):\n    return []"})
    content["cells"][3]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "✓ 90.1 The lowest first"}]
    assert outcomes(graded(folder, tmp_path, content)) == ["wrong", "passed", "passed"]


def checked(content: dict[str, Any], name: str = "90_sample") -> list[tuple[int, str]]:
    return [(step.cell, step.check) for step in plan(content, name)[1] if step.check]


class TestPlan:
    """Where the checks stand, whatever has become of tags and cells."""

    def test_lost_tags_are_made_up_for_by_the_calls(self) -> None:
        assert checked(series(tagged=False), "handed_in") == [(4, "90.1"), (6, "90.2"), (8, "90.3")]

    def test_a_deleted_check_cell_is_replaced_behind_its_exercise(self) -> None:
        content = series()
        del content["cells"][3]
        assert checked(content) == [(3, "90.1"), (5, "90.2"), (7, "90.3")]

    def test_without_tags_and_checks_the_name_decides_and_checks_come_last(self) -> None:
        content = notebook(*(code(source) for source in SOLUTIONS.values()))
        assert plan(content, "handed_in") == (None, [])
        assert checked(content) == [(3, "90.1"), (3, "90.2"), (3, "90.3")]

    def test_changed_tags_give_no_second_mark(self) -> None:
        content = series()
        content["cells"][4]["metadata"]["tags"] = ["exercise-90.1", "exercise-8.1", "exercise-90.99"]
        content["cells"][5]["metadata"]["tags"] = ["check-90.1", "check-90.99"]
        assert checked(content) == [(4, "90.1"), (6, "90.1"), (6, "90.2"), (8, "90.3")]

    def test_a_check_that_was_moved_before_its_exercise_is_repeated_behind_it(self) -> None:
        content = series()
        content["cells"].insert(2, content["cells"].pop(5))
        assert checked(content) == [(3, "90.2"), (5, "90.1"), (6, "90.2"), (8, "90.3")]

    def test_metadata_that_another_program_left_out_or_filled_are_no_matter(self) -> None:
        content = series(tagged=False)
        del content["cells"][2]["metadata"]
        content["cells"][3]["metadata"] = {"tags": None}
        content["cells"][4]["metadata"] = {"tags": [3, "exercise-90.2"]}
        assert checked(content) == [(4, "90.1"), (6, "90.2"), (8, "90.3")]

    def test_a_check_cell_with_more_in_it_is_run_as_well(self) -> None:
        content = series()
        content["cells"][3]["source"] = 'def lowest(free, n):\n    return sorted(free)[:n]\ncheck("90.1", globals())'
        steps = [(step.cell, step.check) for step in plan(content, "90_sample")[1]]
        assert (4, None) in steps
        assert (6, None) not in steps
        assert steps.index((4, None)) < steps.index((4, "90.1"))

    def test_quick_runs_what_the_exercises_need(self) -> None:
        content = series({"90.2": "two = helper(2)\n" + SOLUTIONS["90.2"]})
        more = ["unused = ReqToTokenPool(4, 8)", "helper = lambda n: other[n]", "other = {}", "other[2] = 2", "%time 1"]
        content["cells"][2:2] = [code(source) for source in more]

        def cells(quick: bool) -> list[int]:
            return [step.cell for step in plan(content, "90_sample", quick=quick)[1] if step.source]

        assert cells(quick=False) == [2, 3, 4, 5, 6, 7, 8, 10, 12]
        assert cells(quick=True) == [4, 5, 6, 7, 8, 10, 12]
        content["cells"][7]["metadata"] = {}
        assert cells(quick=True) == cells(quick=False), "an exercise without its tag may need anything"


class TestNeeded:
    """Which cells are needed, by names."""

    @pytest.mark.parametrize(
        "source",
        [
            "import torch.nn as name",
            "from torch import nn as name",
            "import name.inner",
            "class name: ...",
            "async def name(): ...",
            "a, (*name, b) = x",
            "for name in x: ...",
            "with x as name: ...",
            "name: int = 3",
            "name += 1",
            "(name := 3)",
            "name.inner[0].x = 3",
            "del name[0]",
            "@extend(name)\ndef method(self): ...",
            "from anywhere import *",
            "%load_ext anything",
        ],
    )
    def test_whatever_gives_a_name_a_value_is_needed(self, source: str) -> None:
        assert needed([source, "def f():\n    return name"], {1}) == {0, 1}

    @pytest.mark.parametrize("source", ["name", "name.method()", "other = name", "def g(): return name"])
    def test_what_only_uses_it_is_not(self, source: str) -> None:
        assert needed([source, "def f():\n    return name"], {1}) == {1}

    def test_what_the_needed_need_is_needed(self) -> None:
        assert needed(["a = 1", "b = a", "def f(): return b + c", "d = 1", "c = 2"], {2}) == {0, 1, 2, 4}


def _comes_true(condition: Callable[[], bool]) -> bool:
    """Whether it does within a minute."""
    return any(condition() or time.sleep(0.1) for _ in range(600))


def _runs(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
class TestKilled:
    """A grader that is killed itself."""

    def test_no_submission_outlives_a_grader_that_is_killed(self, folder: Path, tmp_path: Path) -> None:
        content = series()
        endless = "import os\nopen(os.environ['TOLD'], 'w').write(f'{os.getpid()}\\n')\n"
        endless += "while True:\n    try:\n        while True: pass\n    except BaseException:\n        pass"
        content["cells"].insert(2, code(endless))
        path, report = save(tmp_path, "90_sample.ipynb", content), tmp_path / "report"
        grader = subprocess.Popen(
            [sys.executable, "-m", "notebooks.grade", str(path), "--checks", str(folder)],
            cwd=ROOT,
            env={**os.environ, "TOLD": str(report), "TMPDIR": str(tmp_path)},
            stdout=subprocess.DEVNULL,
        )
        try:
            assert _comes_true(lambda: report.exists() and report.read_text().endswith("\n"))
        finally:
            grader.kill()
            grader.wait()
        assert _comes_true(lambda: not _runs(int(report.read_text())))


class TestCommand:
    """`python -m notebooks.grade`."""

    def test_no_submission_hides_another(
        self, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        files = [
            save(tmp_path, "anna.ipynb", series({"90.1": "def lowest(free, n):\n    return free"})),
            save(tmp_path, "ben.ipynb", notebook(code("print(1)"))),
        ]
        for name, text in (("cem.ipynb", "{"), ("dora.ipynb", '{"cells": [3]}'), ("eve.ipynb", "\udcff")):
            (tmp_path / name).write_text(text, errors="surrogateescape")
            files.append(tmp_path / name)
        arguments = [
            "--checks",
            str(folder),
            "--csv",
            str(tmp_path / "marks.csv"),
            "--verbose",
            "--names",
            "--jobs",
            "2",
        ]
        assert main([*map(str, files), *arguments]) == 0
        out = capsys.readouterr().out.splitlines()
        assert [line.split() for line in out[:2]] == [
            ["file", "90.1", "90.2", "90.3", "of", "4", "notes"],
            ["anna.ipynb", "0", "1", "1", "2", "90.1", "wrong"],
        ]
        assert "The lowest go first." in out[2]
        assert any("90.1  The lowest first (2)" in line for line in out)
        assert [line.split(maxsplit=1)[1] for line in out if line.startswith("ben")] == ["holds no exercise"]
        unreadable = [line for line in out if "cannot be read" in line]
        assert [line.split()[0] for line in unreadable] == ["cem.ipynb", "dora.ipynb", "eve.ipynb"]
        with (tmp_path / "marks.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [(row["file"], row["exercise"], row["points"], row["of"]) for row in rows[:3]] == [
            ("anna.ipynb", "90.1", "0", "2"),
            ("anna.ipynb", "90.2", "1", "1"),
            ("anna.ipynb", "90.3", "1", "1"),
        ]
        assert len(rows) == 3 + 4

    def test_submissions_of_one_name_are_told_apart(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        files = [save(tmp_path / name, "04.ipynb", notebook(code("print(1)"))) for name in ("anna", "ben")]
        assert main([*map(str, files)]) == 0
        names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
        assert names == ["file", "anna/04.ipynb", "ben/04.ipynb"]

    def test_names_that_a_spreadsheet_or_a_terminal_would_obey_are_made_harmless(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = os.fsencode(tmp_path) + b"/=cmd()\xff\n\x1b[2J.ipynb"
        Path(os.fsdecode(path)).write_text('{"worksheets": [], "nbformat": 3}')
        assert main([os.fsdecode(path), "--csv", str(tmp_path / "marks.csv")]) == 0
        out = capsys.readouterr().out
        assert out.splitlines()[1].split(maxsplit=1) == [
            "=cmd()???[2J.ipynb",
            "cannot be read: is not a notebook of format 4 (format 3: open and save it in Jupyter)",
        ]
        with (tmp_path / "marks.csv").open(newline="", encoding="utf-8") as file:
            (row,) = csv.DictReader(file)
        assert row["file"] == "'=cmd()???[2J.ipynb"

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ([__file__, "--csv", "nowhere/marks.csv"], "nowhere"),
            ([__file__, "--memory", "0"], "--memory"),
            (["nowhere.ipynb"], "nowhere.ipynb"),
            ([__file__, "--timeout", "0"], "--timeout"),
            ([__file__, "--checks", "nowhere"], "nowhere"),
            ([], "notebook.ipynb"),
        ],
    )
    def test_usage_errors_are_told(
        self, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
        assert message in capsys.readouterr().err


def test_points_are_all_or_none(folder: Path) -> None:
    from nanoinfer.teaching.exercises import find

    result = Graded("a", 90, {"90.1": "passed", "90.2": "wrong"})
    assert [points(result, find(id)) for id in TITLES] == [2, 0, 0]
