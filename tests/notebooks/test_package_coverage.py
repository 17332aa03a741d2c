"""Everything public of the core is shown in a notebook, or it is said why not."""

from pathlib import Path

import pytest

from notebooks.sync import CORE, NOT_TAUGHT, REFRESH, coverage, sync
from notebooks.tools.files import ROOT, read, sources
from tests.sample_package import save_package
from tests.sample_series import code, notebook


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with the made-up module pack/box.py."""
    return save_package(tmp_path)


def test_what_is_neither_shown_nor_excused(root: Path) -> None:
    cells = [code("# in pack/box.py\nclass Box:\n    def add(): ..."), code("# in pack/box.py\nclass Bare: ...")]
    shown = sync(notebook(*cells), "a", root).shown
    problems = coverage(shown, ["pack/box.py"], {"pack/box.py:half": "it is easy"}, root)
    assert [line.split(": ")[0] for line in problems] == ["pack/box.py:Box.empty", "pack/box.py:Box.size"]


def test_both_ways_out_are_named(root: Path) -> None:
    problems = coverage({"pack/box.py:Box"}, ["pack/box.py"], {}, root)
    (method,) = [line for line in problems if line.startswith("pack/box.py:Box.size: ")]
    for words in ("`# in pack/box.py`", "`@extend(Box)`", "`def size(self): ...`", REFRESH, "NOT_TAUGHT"):
        assert words in method
    assert any("`def half(): ...`" in line for line in problems)
    assert any("`class Bare: ...`" in line for line in problems)


def test_an_excuse_covers_a_class_with_its_methods_or_a_file(root: Path) -> None:
    problems = coverage(set(), ["pack/box.py"], {"pack/box.py:Box": "why"}, root)
    assert {line.split(":")[1] for line in problems} == {"half", "Bare", "Bare.first", "Bare.second"}
    assert coverage(set(), ["pack/box.py"], {"pack/box.py": "why"}, root) == []


def test_a_folder_stands_for_its_files(root: Path) -> None:
    (root / "pack" / "more.py").write_text("def third() -> None: ...\n")
    problems = coverage(set(), ["pack"], {"pack/box.py": "why"}, root)
    assert [line.split(": ")[0] for line in problems] == ["pack/more.py:third"]


def test_a_core_file_that_is_gone(root: Path) -> None:
    (problem,) = coverage(set(), ["pack/gone.py"], {}, root)
    assert problem == "pack/gone.py: no such file, but CORE in notebooks/sync.py names it"


def test_excuses_must_be_needed_exist_and_give_a_reason(root: Path) -> None:
    shown = {f"pack/box.py:{name}" for name in ("Box", "Box.add", "Box.size", "Box.empty", "half", "Bare")}
    shown |= {"pack/box.py:Bare.first"}
    excuses = {"pack/box.py:half": "why", "pack/box.py:gone": "why", "pack/box.py:Bare.second": " "}
    assert [line.split(": ")[1] for line in coverage(shown, ["pack/box.py"], excuses, root)] == [
        "NOT_TAUGHT excuses it, but a notebook shows it",
        "NOT_TAUGHT excuses it, but it is no public definition",
        "NOT_TAUGHT gives no reason",
    ]


def test_between_them_the_notebooks_show_every_public_definition_of_the_core() -> None:
    shown = {name for path in sources(ROOT) for name in sync(read(path), path.stem, ROOT).shown}
    problems = coverage(shown, CORE, NOT_TAUGHT, ROOT)
    assert not problems, "\n".join(problems)
