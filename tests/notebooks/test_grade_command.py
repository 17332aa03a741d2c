"""`python -m notebooks.grade`: which cells and exercises of a submission it finds, and what it prints of them."""

import csv
import os
from pathlib import Path
from typing import Any

import pytest

from notebooks.grade import main
from notebooks.tools.submission import plan
from tests.helpers.waiting import HANG_S
from tests.sample_series import code, notebook, save, series

pytestmark = pytest.mark.usefixtures("checks_folder")


@pytest.mark.slow
def test_no_submission_hides_another(checks_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [
        save(tmp_path, "anna.ipynb", series({"90.1": "def lowest(free, n):\n    return free"})),
        save(tmp_path, "ben.ipynb", notebook(code("print(1)"))),
    ]
    for name, text in (("cem.ipynb", "{"), ("dora.ipynb", '{"cells": [3]}'), ("eve.ipynb", "\udcff")):
        (tmp_path / name).write_text(text, errors="surrogateescape")
        files.append(tmp_path / name)
    arguments = ["--checks", str(checks_folder), "--csv", str(tmp_path / "marks.csv"), "--verbose"]
    arguments += ["--jobs", "2", "--timeout", str(HANG_S), "--total", str(20 * HANG_S)]
    assert main([*map(str, files), *arguments]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split() for line in out[:2]] == [
        ["file", "90.1", "90.2", "90.3", "of", "4", "notes"],
        ["anna.ipynb", "0", "1", "1", "2", "90.1", "wrong"],
    ]
    assert "The lowest go first." in out[2]
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


def test_submissions_of_one_name_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [save(tmp_path / name, "04.ipynb", notebook(code("print(1)"))) for name in ("anna", "ben")]
    assert main([*map(str, files)]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["file", "anna/04.ipynb", "ben/04.ipynb"]


def test_names_that_a_spreadsheet_or_a_terminal_would_obey_are_made_harmless(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = os.fsencode(tmp_path) + b"/=cmd()\xff\n\x1b[2J.ipynb"
    Path(os.fsdecode(path)).write_text('{"worksheets": [], "nbformat": 3}')
    assert main([os.fsdecode(path), "--csv", str(tmp_path / "marks.csv")]) == 0
    name, said = capsys.readouterr().out.splitlines()[1].split(maxsplit=1)
    assert (name, "format 3" in said) == ("=cmd()???[2J.ipynb", True)
    with (tmp_path / "marks.csv").open(newline="", encoding="utf-8") as file:
        assert next(csv.DictReader(file))["file"] == "'=cmd()???[2J.ipynb"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.ipynb"], "nowhere.ipynb"),
        ([__file__, "--timeout", "0"], "--timeout"),
        ([__file__, "--checks", "nowhere"], "nowhere"),
    ],
)
def test_usage_errors_are_told(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def checked(content: dict[str, Any], name: str = "90_sample") -> list[tuple[int, str]]:
    return [(step.cell, step.check) for step in plan(content, name)[1] if step.check]


def test_lost_tags_are_made_up_for_by_the_calls() -> None:
    assert checked(series(tagged=False), "handed_in") == [(4, "90.1"), (6, "90.2"), (8, "90.3")]


def test_a_deleted_check_cell_is_replaced_behind_its_exercise() -> None:
    content = series()
    del content["cells"][3]
    assert checked(content) == [(3, "90.1"), (5, "90.2"), (7, "90.3")]


def test_changed_tags_give_no_second_mark() -> None:
    content = series()
    content["cells"][4]["metadata"]["tags"] = ["exercise-90.1", "exercise-8.1", "exercise-90.99"]
    content["cells"][5]["metadata"]["tags"] = ["check-90.1", "check-90.99"]
    assert checked(content) == [(4, "90.1"), (6, "90.1"), (6, "90.2"), (8, "90.3")]


def test_a_check_that_was_moved_before_its_exercise_is_repeated_behind_it() -> None:
    content = series()
    content["cells"].insert(2, content["cells"].pop(5))
    assert checked(content) == [(3, "90.2"), (5, "90.1"), (6, "90.2"), (8, "90.3")]


def test_a_check_cell_with_more_in_it_is_run_as_well() -> None:
    content = series()
    content["cells"][3]["source"] = 'def lowest(free, n):\n    return sorted(free)[:n]\ncheck("90.1", globals())'
    steps = [(step.cell, step.check) for step in plan(content, "90_sample")[1]]
    assert (4, None) in steps
    assert (6, None) not in steps
    assert steps.index((4, None)) < steps.index((4, "90.1"))
