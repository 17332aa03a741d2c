"""The grader: marks for what is right, whatever else a submission does."""

import sys
from pathlib import Path

import pytest

from notebooks.course.exercises import find
from notebooks.grade import notes, points
from notebooks.tools.files import ROOT
from notebooks.tools.student import student_notebook
from notebooks.tools.submission import Graded, grade
from tests.helpers.waiting import HANG_S
from tests.notebooks.grading import IDS, graded, outcomes
from tests.sample_series import code, series

pytestmark = pytest.mark.usefixtures("checks_folder")


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
    assert result.notes == []
    assert notes(result) == "90.2 wrong; 90.3 not written"


@pytest.mark.slow
def test_a_cell_that_python_cannot_read_is_no_exercise_that_is_not_written(checks_folder: Path, tmp_path: Path) -> None:
    sources = {"90.1": "def lowest(free, n)\n    return sorted(free)[:n]", "90.2": "def twice(n):\nreturn 2 * n"}
    result = graded(checks_folder, tmp_path, series(sources))
    assert outcomes(result) == ["syntax error", "syntax error", "passed"]
    assert "line 1 of its cell: def lowest(free, n)\n  SyntaxError: expected ':'" in result.texts["90.1"]
    assert "line 2 of its cell: return 2 * n\n  IndentationError: expected an indented block" in result.texts["90.2"]
    assert notes(result) == "90.1, 90.2 syntax error"


@pytest.mark.slow
def test_the_generated_student_notebook_gets_nothing(checks_folder: Path, tmp_path: Path) -> None:
    content = student_notebook(series(), "90_sample")
    result = graded(checks_folder, tmp_path, content)
    assert outcomes(result) == ["not written"] * 3
    assert (result.notes, result.raised) == ([], {})


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


@pytest.mark.slow
def test_a_cell_that_ran_was_read_and_one_that_was_not_read_is_told_of(checks_folder: Path, tmp_path: Path) -> None:
    """Whatever IPython makes Python of, or cannot."""
    wrong = "!true\ndef twice(number):\n    return 3 * number"
    dedented = "def rows(pool, n):\n        left = n % 2\n    return left"
    result = graded(checks_folder, tmp_path, series({"90.2": wrong, "90.3": dedented}))
    assert outcomes(result) == ["passed", "wrong", "syntax error"]
    assert "line 3" in result.texts["90.3"]
    assert result.notes == []


@pytest.mark.slow
def test_who_checks_an_exercise_cannot_be_exchanged(checks_folder: Path, tmp_path: Path) -> None:
    exchanged = (
        "from notebooks.course import exercises\nfor each in exercises._exercises.values():\n"
        "    object.__setattr__(each, 'checker', lambda given: 'right')\ndef twice(number):\n    return 3 * number"
    )
    assert outcomes(graded(checks_folder, tmp_path, series({"90.2": exchanged}))) == ["passed", "wrong", "passed"]


def test_points_are_all_or_none() -> None:
    result = Graded("a", 90, {"90.1": "passed", "90.2": "wrong"})
    assert [points(result, find(id)) for id in IDS] == [2, 0, 0]
