"""What of a submission is run and checked, in which order, whatever has become of its tags and cells."""

from typing import Any

import pytest

from notebooks.tools.submission import plan
from tests.sample_series import SOLUTIONS, code, notebook, series

pytestmark = pytest.mark.usefixtures("checks_folder")


def checked(content: dict[str, Any], name: str = "90_sample") -> list[tuple[int, str]]:
    return [(step.cell, step.check) for step in plan(content, name)[1] if step.check]


def test_lost_tags_are_made_up_for_by_the_calls() -> None:
    assert checked(series(tagged=False), "handed_in") == [(4, "90.1"), (6, "90.2"), (8, "90.3")]


def test_a_deleted_check_cell_is_replaced_behind_its_exercise() -> None:
    content = series()
    del content["cells"][3]
    assert checked(content) == [(3, "90.1"), (5, "90.2"), (7, "90.3")]


def test_without_tags_and_checks_the_name_decides_and_checks_come_last() -> None:
    content = notebook(*(code(source) for source in SOLUTIONS.values()))
    assert plan(content, "handed_in") == (None, [])
    assert checked(content) == [(3, "90.1"), (3, "90.2"), (3, "90.3")]


def test_changed_tags_give_no_second_mark() -> None:
    content = series()
    content["cells"][4]["metadata"]["tags"] = ["exercise-90.1", "exercise-8.1", "exercise-90.99"]
    content["cells"][5]["metadata"]["tags"] = ["check-90.1", "check-90.99"]
    assert checked(content) == [(4, "90.1"), (6, "90.1"), (6, "90.2"), (8, "90.3")]


def test_a_check_that_was_moved_before_its_exercise_is_repeated_behind_it() -> None:
    content = series()
    content["cells"].insert(2, content["cells"].pop(5))
    assert checked(content) == [(3, "90.2"), (5, "90.1"), (6, "90.2"), (8, "90.3")]


def test_metadata_that_another_program_left_out_or_filled_are_no_matter() -> None:
    content = series(tagged=False)
    del content["cells"][2]["metadata"]
    content["cells"][3]["metadata"] = {"tags": None}
    content["cells"][4]["metadata"] = {"tags": [3, "exercise-90.2"]}
    assert checked(content) == [(4, "90.1"), (6, "90.2"), (8, "90.3")]


def test_a_check_cell_with_more_in_it_is_run_as_well() -> None:
    content = series()
    content["cells"][3]["source"] = 'def lowest(free, n):\n    return sorted(free)[:n]\ncheck("90.1", globals())'
    steps = [(step.cell, step.check) for step in plan(content, "90_sample")[1]]
    assert (4, None) in steps
    assert (6, None) not in steps
    assert steps.index((4, None)) < steps.index((4, "90.1"))
