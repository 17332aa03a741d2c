"""The exercises as an nbgrader course: its metadata, and what cannot be exported."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from notebooks.course.exercises import exercises_of
from notebooks.to_nbgrader import main, nbgrader_notebook
from notebooks.tools.files import ROOT, read, source_of, sources
from notebooks.tools.student import number_of
from tests.sample_series import series

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
