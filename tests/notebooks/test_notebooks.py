"""The notebooks as committed: they run, say the same again, and their exercises can be solved and cannot be skipped.

Every notebook runs once, by nbval; in the same kernel its exercises are solved afterwards, as by a student who ran it all
first. That a stub fails needs no run of its own: the committed notebook says so, and nbval compares what it says.
"""

from pathlib import Path

import pytest

from notebooks.build import built_path, check
from notebooks.course.exercises import exercises_of
from notebooks.tools.files import ROOT, read, source_of, sources, tags
from notebooks.tools.student import checked_ids, number_of
from notebooks.tools.tidy import clear_outputs, output_problems, tidy
from tests.nbval_run import nbval, nbval_then_solved

SOURCES = sources(ROOT)
BUILT = [built_path(source) for source in SOURCES]
SOLUTIONS = [source for source in SOURCES if source.parent.name == "solutions"]

# Those that take longest, the longest first: of several processes none then ends long after the others.
LONG = ["16", "12", "17", "13", "14", "04", "03"]


def every(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=lambda path: str(path.relative_to(ROOT / "notebooks")))


def every_run(paths: list[Path]) -> pytest.MarkDecorator:
    """As `every`, the longest first, and each in whichever process is free."""
    order = {number: place for place, number in enumerate(LONG)}
    ordered = sorted(paths, key=lambda path: order.get(path.name[:2], len(LONG)))
    runs = []
    for path in ordered:
        id = str(path.relative_to(ROOT / "notebooks"))
        runs.append(pytest.param(path, id=id, marks=pytest.mark.slow))
    return pytest.mark.parametrize("path", runs)


@every_run(BUILT)
def test_a_notebook_runs_says_what_it_said_and_can_be_solved_then(path: Path, tmp_path: Path) -> None:
    solution = path.parent / "solutions" / path.name
    done = nbval_then_solved(path, solution, tmp_path) if solution in SOLUTIONS else nbval(path)
    hint = f"\nIf this is what it should say now: python -m notebooks.build {path.stem}"
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:] + hint


@every([built_path(path) for path in SOLUTIONS])
def test_every_stub_fails(path: Path) -> None:
    raised = {}
    for cell in read(path)["cells"]:
        if cell["cell_type"] == "code" and (ids := checked_ids(source_of(cell))):
            assert "nbval-ignore-output" not in tags(cell)
            raised |= {id: [output.get("ename") for output in cell["outputs"]] for id in ids}
    number = number_of(path.stem)
    assert number is not None
    assert raised == {exercise.id: ["NotWritten"] for exercise in exercises_of(number)}


@every(SOURCES)
def test_a_notebook_is_what_its_source_gives(path: Path) -> None:
    problems = check(path)
    assert not problems, "\n".join(problems)


@every(SOURCES)
def test_a_notebook_is_committed_tidy_and_with_its_outputs(path: Path) -> None:
    built, source = read(built_path(path)), read(path)
    code = [cell for cell in built["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert output_problems(built, path.stem) == []
    tidied = read(built_path(path))
    tidy(tidied)
    assert built == tidied
    if path in SOLUTIONS:
        clear_outputs(tidied := read(path))
        assert source == tidied, "solutions are committed without outputs"


def test_the_series_is_complete() -> None:
    numbers = [number_of(path.stem) for path in BUILT]
    assert [number for number in numbers if number is not None] == list(range(20))
    assert {path.stem for path in BUILT if path.parent.name == "demos"} >= {
        "multi_turn_chat",
        "few_shot",
        "branching_agents",
    }
    exercises = {int(path.stem[:2]): len(exercises_of(int(path.stem[:2]))) for path in SOLUTIONS}
    assert list(exercises) == list(range(3, 20)), "from 03 on, every notebook has exercises"
    assert min(exercises.values()) >= 3


def test_no_notebook_is_without_a_source() -> None:
    stray = set((ROOT / "notebooks").glob("**/*.ipynb")) - set(SOURCES) - set(BUILT)
    assert not {path for path in stray if ".ipynb_checkpoints" not in path.parts}
