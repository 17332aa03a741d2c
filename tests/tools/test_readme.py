"""The Python code in the READMEs runs, their links lead somewhere, the animation can be drawn again, and the reading list
of nanoinfer/README.md names all that a request passes through on the plain path."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from inspect import getsource
from pathlib import Path
from textwrap import dedent
from types import FrameType
from typing import Any

import pytest
from PIL import ImageColor

from nanoinfer import LLM, SamplingParams, registry
from nanoinfer.engine.engine import Engine
from nanoinfer.trace import Trace
from nanoinfer.viz.palette import PHASE_STYLES, ROLES, owner_style
from tests.helpers.imports import read_imports

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "nanoinfer"
READMES = ("README.md", "nanoinfer/README.md", "notebooks/README.md", "data/README.md", "data/bench/README.md")
TESTED = ("README.md", "nanoinfer/README.md")
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


@pytest.mark.parametrize("name", READMES)
def test_links_lead_to_files_and_headings(name: str) -> None:
    text = (ROOT / name).read_text()
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    for link in links:
        path, _, anchor = link.partition("#")
        there = (ROOT / name).parent / path if path else ROOT / name
        assert there.exists(), link
        headings = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in [
            re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings
        ]


def test_files_that_the_guide_to_the_package_names_exist() -> None:
    names = set(re.findall(r"(?<![\w./])((?:\w+/)*\w+(?:\.py|/))(?![\w*])", (PACKAGE / "README.md").read_text()))
    assert [name for name in sorted(names) if not (PACKAGE / name).exists() and not (ROOT / name).exists()] == []


def test_the_pass_that_the_guide_prints_is_the_engines() -> None:
    blocks = re.findall(r"```py\n(.*?)```", (ROOT / "nanoinfer" / "README.md").read_text(), re.DOTALL)
    (printed,) = [block for block in blocks if block.startswith("def _one_pass")]
    assert printed == dedent(getsource(Engine._one_pass))


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


# --- the reading list --------------------------------------------------------------------------------------------------

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
