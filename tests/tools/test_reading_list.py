"""The reading list of nanoinfer/README.md is short, and names all that a request passes through on the plain path."""

import ast
import io
import re
import sys
import tokenize
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.model_runner import ModelRunner
from tests.helpers.imports import read_imports

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "nanoinfer"
MOST_FILES, MOST_LINES, MOST_FRAMES = 30, 2000, 6
PLAIN: dict[str, Any] = {
    "capture": False,
    "kernels": "torch",
    "attention_backend": "torch_native",
    "max_total_tokens": 512,
}
FIVE = SamplingParams(max_new_tokens=5, temperature=0)


def section(text: str, title: str) -> str:
    """The part of a page under a heading, up to the next one."""
    return re.split(r"^#+ ", text.split(f"# {title}\n", 1)[1], maxsplit=1, flags=re.M)[0]


def listed() -> list[str]:
    """The files of the table, in order."""
    return re.findall(r"^\| `([\w/]+\.py)` \|", section((PACKAGE / "README.md").read_text(), "What to read"), re.M)


def named() -> set[str]:
    """All files that the section mentions."""
    return set(re.findall(r"`([\w/]+\.py)`", section((PACKAGE / "README.md").read_text(), "What to read")))


def code_lines(source: str) -> int:
    """How many lines have code: blank ones, comments and docstrings do not count."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    nothing = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in nothing:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


@contextmanager
def files_called() -> Iterator[set[str]]:
    """The files of the package of which a function is called in this thread inside the block."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(f"{PACKAGE}/"):
            files.add(path.removeprefix(f"{PACKAGE}/"))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield files
    finally:
        sys.setprofile(before)


def test_lines_of_code_are_counted_without_what_is_only_read() -> None:
    lines = (
        '"""One."""',
        "",
        "import os  # two",
        "def f(",
        "    x,",
        "):",
        '    """Three.',
        "",
        '    Four."""',
        "    # five",
    )
    source = "\n".join([*lines, '    return """a', 'b"""', ""])
    assert code_lines(source) == 1 + 3 + 2


def test_the_core_is_short_enough_to_be_read_and_both_pages_say_its_size() -> None:
    files = listed()
    assert len(files) == len(set(files)) <= MOST_FILES
    lines = {file: code_lines((PACKAGE / file).read_text(encoding="utf-8")) for file in files}
    assert sum(lines.values()) <= MOST_LINES, lines
    for page in (PACKAGE / "README.md", ROOT / "README.md"):
        assert f"{len(files)} files" in page.read_text(encoding="utf-8"), page


def test_every_file_that_the_section_names_exists() -> None:
    assert [file for file in sorted(named()) if not (PACKAGE / file).is_file()] == []


def test_a_request_on_the_plain_path_passes_through_no_file_that_the_section_does_not_name() -> None:
    engine = LLM("story", **PLAIN).engine
    with files_called() as files:
        for prompt in ("Once upon a time", "Once upon a hill"):
            engine.add_request(prompt, FIVE)
        while engine.has_unfinished():
            engine.step()
    assert sorted(files - named()) == []
    assert sorted(set(listed()) - files) == ["model/forward_batch.py"], "a record: it has no function that runs here"


def test_every_file_that_a_listed_file_imports_is_named() -> None:
    imports = read_imports(ROOT, "nanoinfer").graph()
    modules = {f"nanoinfer.{file.removesuffix('.py').replace('/', '.')}" for file in named()}
    missing = {
        f"{importer} imports {imported}"
        for importer in (f"nanoinfer.{file.removesuffix('.py').replace('/', '.')}" for file in listed())
        for imported in set(imports[importer]) - modules
        if (PACKAGE.parent / imported.replace(".", "/")).with_suffix(".py").is_file()
    }
    assert not missing, "\n".join(sorted(missing))


@pytest.fixture
def stack_of_a_pass(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], list[str]]:
    """The functions of the package that a debugger shows above `ModelRunner.forward_batch`, outermost first."""

    def during(call: Callable[[], object]) -> list[str]:
        stacks: list[list[str]] = []
        original = ModelRunner.forward_batch

        def noted(self: ModelRunner, *arguments: Any) -> Any:
            frames = traceback.extract_stack()[:-1]
            stacks.append([frame.name for frame in frames if frame.filename.startswith(f"{PACKAGE}/")])
            return original(self, *arguments)

        monkeypatch.setattr(ModelRunner, "forward_batch", noted)
        call()
        return stacks[0]

    return during


def test_few_frames_are_between_generate_and_forward(
    stack_of_a_pass: Callable[[Callable[[], object]], list[str]],
) -> None:
    """In the thread that makes the steps, and by hand."""
    llm = LLM("story", **PLAIN)
    inside = stack_of_a_pass(lambda: llm.generate("Once", FIVE))
    assert inside == ["_serve", "work", "_step", "step", "step", "_one_pass"]
    assert len(inside) <= MOST_FRAMES
    engine = LLM("story", **PLAIN).engine
    engine.add_request("Once", FIVE)
    assert stack_of_a_pass(engine.step) == ["step", "step", "_one_pass"]
