"""The reading list of the architecture page names all that a request passes through on the plain path."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from nanoinfer import LLM, SamplingParams
from tests.helpers.imports import read_imports

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "nanoinfer"
PAGE = ROOT / "notebooks" / "handbook" / "architecture.md"
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
    return re.findall(r"^\| `([\w/]+\.py)` \|", section(PAGE.read_text(), "What to read"), re.M)


def named() -> set[str]:
    """All files that the section mentions."""
    return set(re.findall(r"`([\w/]+\.py)`", section(PAGE.read_text(), "What to read")))


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
