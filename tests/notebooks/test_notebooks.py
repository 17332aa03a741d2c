"""The notebooks as committed: they run, say the same again, their exercises can be solved and cannot be skipped, and their
links lead somewhere.

Every notebook runs once, by nbval; in the same kernel its exercises are solved afterwards, as by a student who ran it all
first. That a stub fails needs no run of its own: the committed notebook says so, and nbval compares what it says.
"""

import re
from pathlib import Path
from urllib.parse import unquote

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
PAGES = [
    ROOT / page
    for page in (
        "README.md",
        *(f"notebooks/{name}.md" for name in ("README", "glossary", "teaching", "explorables/README")),
    )
]
FENCED = re.compile(r"^ {0,3}(```+|~~~+).*?^ {0,3}\1\s*$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|\b(?:href|src)=[\"']([^\"']+)[\"']")
OUTSIDE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)  # https:, mailto:, data:

# Those that take longest, the longest first: of several processes none then ends long after the others.
LONG = ["17", "11", "02", "04", "12", "14", "10"]


def every(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=lambda path: str(path.relative_to(ROOT)))


@pytest.mark.slow
@every(sorted(BUILT, key=lambda path: (*LONG, path.name[:2]).index(path.name[:2])))
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
    assert [number for number in numbers if number is not None] == list(range(22))
    assert {path.stem for path in BUILT if path.parent.name == "demos"} >= {
        "multi_turn_chat",
        "few_shot",
        "branching_agents",
    }
    exercises = {int(path.stem[:2]): len(exercises_of(int(path.stem[:2]))) for path in SOLUTIONS}
    assert list(exercises) == list(range(3, 22)), "from 03 on, every notebook has exercises"
    assert min(exercises.values()) >= 1


def test_no_notebook_is_without_a_source() -> None:
    stray = set((ROOT / "notebooks").glob("**/*.ipynb")) - set(SOURCES) - set(BUILT)
    assert not {path for path in stray if ".ipynb_checkpoints" not in path.parts}


def text_of(path: Path) -> str:
    """A page, or the markdown cells of a notebook, without blocks of code."""
    if path.suffix != ".ipynb":
        return FENCED.sub("", path.read_text(encoding="utf-8"))
    cells = [source_of(cell) for cell in read(path)["cells"] if cell["cell_type"] == "markdown"]
    return FENCED.sub("", "\n\n".join(cells))


def anchors(path: Path) -> set[str]:
    """What may follow `#` after a file's name: a heading as Jupyter or as GitHub names it."""
    titles = [re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", title) for title in HEADING.findall(text_of(path))]
    if path.suffix == ".ipynb":
        return {re.sub(r"\s", "-", title) for title in titles}
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(path: Path, text: str) -> list[str]:
    broken = []
    for match in LINK.finditer(re.sub(r"`[^`\n]*`", "", text)):
        link = match[1] or match[2]
        name, _, anchor = unquote(link).partition("#")
        target = (path.parent / name).resolve() if name else path
        there = target.exists() and (not anchor or target.suffix not in (".md", ".ipynb") or anchor in anchors(target))
        if not OUTSIDE.match(link) and not there:
            broken.append(link)
    return broken


@every([*BUILT, *PAGES])
def test_links_lead_somewhere(path: Path) -> None:
    assert broken_links(path, text_of(path)) == []


def test_links_that_lead_nowhere_are_found() -> None:
    path = ROOT / "notebooks" / "README.md"
    text = "[a](README.md#the-series) [b](#To-grade) [c](https://no.where) [d](no.md) `[e](no.md)` ![f](g.png)"
    assert broken_links(path, text) == ["#To-grade", "no.md", "g.png"]


def test_a_teacher_finds_every_section_and_exercise() -> None:
    text = (ROOT / "notebooks" / "teaching.md").read_text(encoding="utf-8")
    titles = {title for path in BUILT for title in HEADING.findall(text_of(path))}
    named = {" ".join(name.split()) for name in re.findall(r"(?<!\*)\*([^*]+)\*(?!\*)", text)}
    assert named - titles == set()
    exercises = {exercise.id for path in SOLUTIONS for exercise in exercises_of(int(path.stem[:2]))}
    assert set(re.findall(r"\b\d+\.\d+\b", text)) - exercises == set()
