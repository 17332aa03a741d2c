"""What of a submission is run and checked, in which order, whatever has become of its tags and cells."""

from typing import Any

import pytest

from notebooks.tools.needed import needed
from notebooks.tools.steps import plan
from tests.sample_series import SOLUTIONS, code, notebook, series

pytestmark = pytest.mark.usefixtures("checks_folder")


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
