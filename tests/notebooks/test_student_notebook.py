"""The student's notebook: solutions cleared, and whatever does not fit together named."""

from typing import Any

import pytest

from notebooks.tools.files import source_of, tags
from notebooks.tools.student import NotebookError, student_notebook
from tests.sample_series import SOLUTIONS, code, markdown, series

pytestmark = pytest.mark.usefixtures("checks_folder")


def problems(content: dict[str, Any], name: str = "90_sample") -> str:
    with pytest.raises(NotebookError) as caught:
        student_notebook(content, name)
    return str(caught.value)


def test_solutions_become_stubs_and_the_rest_stays() -> None:
    head, rest = "def lowest(free, n):\n    '''Doc.'''\n    if n:\n", "\n    return x"
    solution = f"{head}        ### BEGIN SOLUTION\n        x = 1\n\n        y = 2\n        ### END SOLUTION{rest}"
    content = series({"90.1": solution})
    made = student_notebook(content, "90_sample")
    assert source_of(made["cells"][2]) == f'{head}        raise NotImplementedError("exercise 90.1"){rest}'
    assert tags(made["cells"][3]) == ["check-90.1", "raises-exception"]
    assert [source_of(made["cells"][i]) for i in (0, 1, 3)] == [source_of(content["cells"][i]) for i in (0, 1, 3)]
    assert source_of(content["cells"][2]) == solution, "the solution is left alone"
    assert tags(content["cells"][3]) == ["check-90.1"]


def test_what_does_not_fit_together_is_named_with_its_cell() -> None:
    block = SOLUTIONS["90.1"]
    content = series({"90.1": "def lowest(): ...", "90.2": SOLUTIONS["90.2"].replace("### END SOLUTION", "")})
    content["cells"].append(code(block))
    content["cells"][3]["metadata"] = {}
    found = problems(content).splitlines()
    assert found == [
        "90_sample, cell 3: exercise 90.1 has no solution block (### BEGIN SOLUTION ... ### END SOLUTION)",
        "90_sample, cell 4: checks 90.1, but its tags check- say nothing",
        "90_sample, cell 5: ### BEGIN SOLUTION and ### END SOLUTION do not match",
        "90_sample, cell 9: a solution block, but no tag exercise-N.M",
        "90_sample, cell 3: exercise 90.1 has no check cell (tag check-90.1)",
    ]


@pytest.mark.parametrize(
    "sloppy", ["### Begin Solution", "###BEGIN SOLUTION", "### BEGIN SOLUTION:", "x = 1 # BEGIN SOLUTION"]
)
def test_a_mark_that_would_not_be_found_is_refused(sloppy: str) -> None:
    content = series({"90.1": f"{SOLUTIONS['90.1']}\n    {sloppy}\n    secret = 3"})
    assert problems(content) == (
        f"90_sample, cell 3: `{sloppy}` is not a line ### BEGIN SOLUTION or ### END SOLUTION: "
        "students would see what it marks"
    )


def test_ids_must_be_known_of_this_notebook_and_there_once() -> None:
    content = series()
    content["cells"] += [code(SOLUTIONS["90.1"], "exercise-90.1"), code(SOLUTIONS["90.1"], "exercise-90.9")]
    content["cells"] += [code('check("5.1", globals())', "check-5.1"), markdown("?")]
    content["cells"][-1]["metadata"]["tags"] = ["exercise-90.1"]
    found = problems(content)
    assert "cell 9: exercise-90.1 is there already, in cell 3" in found
    assert "cell 10: exercise-90.9 has no checker (checks of notebook 90: 90.1, 90.2, 90.3)" in found
    assert "cell 10: exercise 90.9 has no check cell" in found
    assert "cell 11: check-5.1 is not of notebook 90" in found
    assert "cell 12: tag exercise-90.1 on a cell that is not code" in found


def test_an_exercise_that_the_notebook_leaves_out_is_named() -> None:
    content = series()
    del content["cells"][6:8]
    assert problems(content) == "90_sample: no cell has the tag exercise-90.3"


def test_several_exercises_in_a_cell_and_a_check_before_its_exercise() -> None:
    content = series()
    content["cells"].insert(2, content["cells"].pop(3))
    content["cells"].append(code(SOLUTIONS["90.1"], "exercise-90.4", "exercise-90.5"))
    found = problems(content)
    assert "cell 3: check 90.1 comes before its exercise" in found
    assert "cell 9: holds several exercises (90.4, 90.5): must be one per cell" in found


def test_the_name_has_a_number() -> None:
    assert "begins with its number" in problems(series(), "sample")
