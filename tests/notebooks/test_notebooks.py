"""The notebooks as committed: they run, say the same again, and their exercises can be solved and cannot be skipped.

Every notebook runs once (nbval); of those with exercises the solution runs once (the grader), and once the cells that the
stubs need. As many run at a time as there are cores.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from nanoinfer.teaching.exercises import exercises_of
from notebooks.build import built_path, check
from notebooks.tools.files import ROOT, read, source_of, sources, tags
from notebooks.tools.student import checked_ids, number_of
from notebooks.tools.submission import Graded, grade
from notebooks.tools.tidy import clear_outputs, output_problems, tidy
from tests.nbval_run import CELL_SECONDS, NOTEBOOK_SECONDS, nbval

SOURCES = sources(ROOT)
BUILT = [built_path(source) for source in SOURCES]
SOLUTIONS = [source for source in SOURCES if source.parent.name == "solutions"]


def every(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=[str(path.relative_to(ROOT / "notebooks")) for path in paths])


def graded(path: Path) -> Graded:
    return grade(path, timeout=CELL_SECONDS, total=NOTEBOOK_SECONDS)


def graded_quickly(path: Path) -> Graded:
    return grade(path, timeout=CELL_SECONDS, total=NOTEBOOK_SECONDS, quick=True)


Runs = dict[tuple[str, Path], Future[Any]]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[Runs]:
    """Everything that the tests chosen for this session run, begun at once."""
    jobs: dict[str, Callable[[Path], Any]] = {"nbval": nbval, "graded": graded, "graded quickly": graded_quickly}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        started: Runs = {}
        for item in request.session.items:
            kind = next((mark.args[0] for mark in item.iter_markers("runs_notebook")), None)
            if kind is not None and isinstance(item, pytest.Function):
                path = item.callspec.params["path"]
                started[kind, path] = pool.submit(jobs[kind], path)
        yield started
        pool.shutdown(cancel_futures=True)


@pytest.mark.runs_notebook("nbval")
@every(BUILT)
def test_a_notebook_runs_and_says_what_it_said(path: Path, runs: Runs) -> None:
    done = runs["nbval", path].result()
    hint = f"\nIf this is what it should say now: python -m notebooks.build {path.stem}"
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:] + hint


@pytest.mark.runs_notebook("graded")
@every(SOLUTIONS)
def test_every_solution_passes(path: Path, runs: Runs) -> None:
    result = runs["graded", path].result()
    assert result.notes == []
    assert set(result.outcomes.values()) == {"passed"}, result
    meant = {i for i, cell in enumerate(read(path)["cells"], 1) if "raises-exception" in tags(cell)}
    assert {i: error for i, error in result.raised.items() if i not in meant} == {}


@pytest.mark.runs_notebook("graded quickly")
@every([built_path(path) for path in SOLUTIONS])
def test_every_stub_fails(path: Path, runs: Runs) -> None:
    result = runs["graded quickly", path].result()
    assert result.notes == []
    assert set(result.outcomes.values()) == {"not written"}, result
    raised = {}
    for cell in read(path)["cells"]:
        if cell["cell_type"] == "code" and (ids := checked_ids(source_of(cell))):
            raised |= {id: [output.get("ename") for output in cell["outputs"]] for id in ids}
    assert raised == {id: ["NotWritten"] for id in result.outcomes}, "and the notebook as committed says so"


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
    assert [number for number in numbers if number is not None] == list(range(18))
    assert {path.stem for path in BUILT if path.parent.name == "demos"} >= {
        "multi_turn_chat",
        "few_shot",
        "branching_agents",
    }
    exercises = {int(path.stem[:2]): len(exercises_of(int(path.stem[:2]))) for path in SOLUTIONS}
    assert list(exercises) == list(range(3, 18)), "from 03 on, every notebook has exercises"
    assert min(exercises.values()) >= 3


def test_no_notebook_is_without_a_source() -> None:
    stray = set((ROOT / "notebooks").glob("**/*.ipynb")) - set(SOURCES) - set(BUILT)
    assert not {path for path in stray if ".ipynb_checkpoints" not in path.parts}
