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
    content["cells"] += [code(block), code(block, "exercise-90.4", "exercise-90.5"), markdown("?")]
    content["cells"][3]["metadata"] = {}
    content["cells"][-1]["metadata"]["tags"] = ["exercise-90.1"]
    found = problems(content).splitlines()
    said = (
        "no solution block",
        "its tags check-",
        "do not match",
        "no tag exercise-N.M",
        "several exercises",
        "not code",
    )
    for line, cell, problem in zip(found, (3, 4, 5, 9, 10, 11), said, strict=False):
        assert line.startswith(f"90_sample, cell {cell}: ")
        assert problem in line
    assert len(found) == len(said) + 2, "and the two lists of ids that differ from those of the checkers"


@pytest.mark.parametrize(
    "sloppy", ["### Begin Solution", "###BEGIN SOLUTION", "### BEGIN SOLUTION:", "x = 1 # BEGIN SOLUTION"]
)
def test_a_mark_that_would_not_be_found_is_refused(sloppy: str) -> None:
    content = series({"90.1": f"{SOLUTIONS['90.1']}\n    {sloppy}\n    secret = 3"})
    assert problems(content) == (
        f"90_sample, cell 3: `{sloppy}` is not a line ### BEGIN SOLUTION or ### END SOLUTION: "
        "students would see what it marks"
    )


def test_tags_name_each_exercise_of_this_notebook_once() -> None:
    left_out, again, unknown = series(), series(), series()
    del left_out["cells"][6:8]
    again["cells"].append(code(SOLUTIONS["90.1"], "exercise-90.1"))
    unknown["cells"] += [code(SOLUTIONS["90.1"], "exercise-5.1"), code('check("5.1", globals())', "check-5.1")]
    for content in (left_out, again, unknown):
        assert "but there are checkers of ['90.1', '90.2', '90.3']" in problems(content)


def test_a_check_before_its_exercise_is_named() -> None:
    content = series()
    content["cells"].insert(2, content["cells"].pop(3))
    assert problems(content) == "90_sample, cell 3: check 90.1 comes before its exercise"


def test_the_name_has_a_number() -> None:
    assert "begins with its number" in problems(series(), "sample")
