"""The Python code in README and handbook runs, their links lead somewhere, and the animation can be drawn again."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from PIL import ImageColor

from nanoinfer import LLM, SamplingParams, registry
from nanoinfer.viz.palette import PHASE_STYLES, ROLES, owner_style
from nanoinfer.viz.trace import Trace
from tests.helpers.imports import read_imports
from tests.notebooks.test_notebooks import broken_links, text_of

ROOT = Path(__file__).parent.parent.parent
HANDBOOK = [str(page.relative_to(ROOT)) for page in sorted((ROOT / "notebooks" / "handbook").glob("*.md"))]
TESTED = ("README.md", *HANDBOOK)
BLOCKS = [
    pytest.param(code, id=f"{name}, block {number}")
    for name in TESTED
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL), 1)
]


@pytest.fixture
def _registries_as_they_were() -> Iterator[None]:
    """What a block registers is there for that block only."""
    registries = [value for value in vars(registry).values() if isinstance(value, registry.Registry)]
    before = [dict(entries) for entries in registries]
    yield
    for entries, kept in zip(registries, before, strict=True):
        entries.clear()
        entries.update(kept)


@pytest.mark.slow
@pytest.mark.usefixtures("_registries_as_they_were")
@pytest.mark.parametrize("code", BLOCKS)
def test_a_code_block_runs_as_it_stands(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # some write files
    exec(compile(code, "a README's Python block", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out, "a block shows something"


@pytest.mark.parametrize("name", [*HANDBOOK, "data/README.md", "data/bench/README.md", "tests/README.md"])
def test_links_lead_to_files_and_headings(name: str) -> None:
    """The others' are tested with those of the notebooks."""
    assert broken_links(ROOT / name, text_of(ROOT / name)) == []


@pytest.mark.parametrize("page", TESTED[1:])
def test_files_that_a_page_names_exist(page: str) -> None:
    names = set(re.findall(r"`((?:\w+/)*\w+(?:\.py|/))`", (ROOT / page).read_text()))
    assert [
        name for name in sorted(names) if not (ROOT / "nanoinfer" / name).exists() and not (ROOT / name).exists()
    ] == []


@pytest.mark.slow
def test_the_animation_of_the_example_can_be_drawn_again() -> None:
    spec = spec_from_file_location("make_animation", ROOT / "data" / "trace" / "make_animation.py")
    assert spec is not None
    assert spec.loader is not None
    animation = module_from_spec(spec)
    spec.loader.exec_module(animation)
    trace = Trace.load(ROOT / "data" / "trace" / "example.json")
    event, state = next((event, state) for event, state in trace.states() if event.step == 20)
    image = animation.frame(trace, event, state, most_nodes=9)
    colours = {colour for _, colour in image.getcolors(1 << 24)}
    drawn = {"tree": ROLES["tree_locked"], "request 2": owner_style("request 2", 2), "DECODE": PHASE_STYLES["decode"]}
    assert [name for name, style in drawn.items() if ImageColor.getrgb(style.face) not in colours] == []


# --- the reading list of the architecture page names all that a request passes through on the plain path ---------------

PACKAGE = ROOT / "nanoinfer"
PAGE = ROOT / "notebooks" / "handbook" / "architecture.md"
PLAIN: dict[str, Any] = {
    "kernels": "torch",
    "attention_backend": "torch_native",
    "capture": False,
    "max_total_tokens": 512,
}
FIVE = SamplingParams(max_new_tokens=5, temperature=0)


SECTION = re.split(r"^#+ ", PAGE.read_text().split("# What to read\n", 1)[1], maxsplit=1, flags=re.M)[0]
LISTED = re.findall(r"^\| `([\w/]+\.py)` \|", SECTION, re.M)  # the files of its table
NAMED = set(re.findall(r"`([\w/]+\.py)`", SECTION))


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
    assert sorted(files - NAMED) == []
    assert sorted(set(LISTED) - files) == ["model/forward_batch.py"], "a record: it has no function that runs here"


def test_every_file_that_a_listed_file_imports_is_named() -> None:
    imports = read_imports(ROOT, "nanoinfer").graph()
    modules = {f"nanoinfer.{file.removesuffix('.py').replace('/', '.')}" for file in NAMED}
    missing = {
        f"{importer} imports {imported}"
        for importer in (f"nanoinfer.{file.removesuffix('.py').replace('/', '.')}" for file in LISTED)
        for imported in set(imports[importer]) - modules
        if (PACKAGE.parent / imported.replace(".", "/")).with_suffix(".py").is_file()
    }
    assert not missing, "\n".join(sorted(missing))
