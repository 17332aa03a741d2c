"""The exercises as an nbgrader course: its metadata and, where nbgrader is installed, what it makes of them."""

import copy
import importlib.util
import json
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from notebooks.build import kernel_environment
from notebooks.course.exercises import exercises_of
from notebooks.to_nbgrader import export, main, nbgrader_notebook
from notebooks.tools.files import ROOT, read, source_of, sources
from notebooks.tools.student import NotebookError, number_of
from tests.sample_series import code, save, series

SOLUTIONS = [path for path in sources(ROOT) if path.parent.name == "solutions"]


pytestmark = pytest.mark.usefixtures("checks_folder")


def metadata(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell["metadata"]["nbgrader"] for cell in notebook["cells"] if "nbgrader" in cell["metadata"]]


def assert_valid(notebook: dict[str, Any]) -> None:
    """nbgrader's rules for cell metadata, schema version 3."""
    marked = [(cell, cell["metadata"]["nbgrader"]) for cell in notebook["cells"] if "nbgrader" in cell["metadata"]]
    assert marked
    ids = [about["grade_id"] for _, about in marked]
    assert len(set(ids)) == len(ids)
    for cell, about in marked:
        assert cell["cell_type"] == "code"
        assert re.fullmatch(r"[a-zA-Z0-9_\-]+", about["grade_id"])
        assert about["schema_version"] == 3
        assert {key: type(about[key]) for key in ("grade", "solution", "locked", "task")} == dict.fromkeys(
            ("grade", "solution", "locked", "task"), bool
        )
        assert set(about) <= {"schema_version", "grade", "solution", "locked", "task", "grade_id", "points"}
        assert ("points" in about) == about["grade"]
        assert about["grade"] != about["solution"]
        assert about["locked"] == about["grade"], "checks are locked, solutions are not"
        assert ("### BEGIN SOLUTION" in source_of(cell)) == about["solution"]


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.stem)
def test_the_metadata_of_a_notebook_are_valid_and_its_points_complete(path: Path) -> None:
    made = nbgrader_notebook(read(path), path.stem)
    assert_valid(made)
    number = number_of(path.stem)
    assert number is not None
    wanted = {f"check-{exercise.id.replace('.', '-')}": exercise.points for exercise in exercises_of(number)}
    assert {about["grade_id"]: about["points"] for about in metadata(made) if about["grade"]} == wanted


def test_solution_and_check_cells() -> None:
    content = series()
    before = copy.deepcopy(content)
    made = nbgrader_notebook(content, "90_sample")
    assert_valid(made)
    assert content == before
    shared = {"schema_version": 3, "task": False}
    assert metadata(made)[:2] == [
        {"grade": False, "grade_id": "exercise-90-1", "locked": False, "solution": True, **shared},
        {"grade": True, "grade_id": "check-90-1", "locked": True, "points": 2, "solution": False, **shared},
    ]
    assert source_of(made["cells"][3]) == 'from notebooks.course import check\n\ncheck("90.1", globals())'
    assert "raises-exception" not in made["cells"][3]["metadata"]["tags"]


def test_what_cannot_be_exported_is_named(tmp_path: Path) -> None:
    content = series()
    content["cells"][5] = code('check("90.1", globals())\ncheck("90.2", globals())', "check-90.1", "check-90.2")
    del content["cells"][3]
    with pytest.raises(NotebookError, match=r"one cell checks 90.1, 90.2"):
        nbgrader_notebook(content, "90_sample")
    with pytest.raises(NotebookError, match=r"tags exercise- are"):
        nbgrader_notebook({**content, "cells": content["cells"][3:]}, "90_sample")


def test_the_command_writes_a_course_and_keeps_its_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 0
    written = capsys.readouterr().out.split()
    assert written == [str(tmp_path / "source" / path.stem / path.name) for path in SOLUTIONS]
    assert all(Path(path).is_file() for path in written)
    config = tmp_path / "nbgrader_config.py"
    assert "nanoinfer" in config.read_text()
    config.write_text("# mine")
    assert main([str(tmp_path)]) == 0
    assert config.read_text() == "# mine"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("nbgrader") is None, reason="nbgrader is not installed")
def test_nbgrader_gives_full_marks_for_solutions_and_none_for_stubs(tmp_path: Path, checks_folder: Path) -> None:
    root, course = tmp_path / "project", tmp_path / "course"
    content = series()
    content["cells"][1]["source"] += (
        f"\nimport notebooks.course.checks as checks\nchecks.__path__.append({str(checks_folder)!r})"
    )
    save(root / "notebooks" / "solutions", "90_sample.ipynb", content)
    (source,) = export(course, root)

    def nbgrader(*arguments: str) -> None:
        command = [sys.executable, "-m", "nbgrader", *arguments]
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # nbgrader calls alembic
        environment = {**kernel_environment(ROOT), "PATH": path}
        done = subprocess.run(command, cwd=course, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    nbgrader("generate_assignment", "90_sample")
    released = read(course / "release" / "90_sample" / "90_sample.ipynb")
    assert "### BEGIN SOLUTION" not in json.dumps(released)
    partly = copy.deepcopy(released)
    partly["cells"][4]["source"] = "def twice(number):\n    return number + number"
    partly["cells"][7]["source"] = "print('no check')"
    cheat = copy.deepcopy(released)
    cheat["cells"][2]["source"] = "def check(*args): ..."
    for name, handed_in in (("right", read(source)), ("stub", released), ("partly", partly), ("cheat", cheat)):
        save(course / "submitted" / name / "90_sample", "90_sample.ipynb", handed_in)
    nbgrader("autograde", "90_sample", "--create")
    with sqlite3.connect(course / "gradebook.db") as database:
        marks = database.execute(
            "select student_id, sum(coalesce(manual_score, auto_score, 0)) from grade"
            " join submitted_notebook on grade.notebook_id = submitted_notebook.id"
            " join submitted_assignment on submitted_notebook.assignment_id = submitted_assignment.id"
            " group by student_id"
        ).fetchall()
    assert dict(marks) == {"right": 4, "stub": 0, "partly": 1, "cheat": 0}
