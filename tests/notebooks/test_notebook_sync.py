"""Package cells in whole notebooks: kept in step with the package, wherever its definitions move."""

import json
from pathlib import Path

import pytest

from notebooks import sync as notebook_sync
from notebooks.sync import REFRESH, main, sync
from notebooks.tools.files import ROOT, read, source_of, sources, tags
from tests.sample_package import PACKAGE, part, save_package
from tests.sample_series import code, markdown, notebook, save


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with the made-up module pack/box.py."""
    return save_package(tmp_path)


class TestSync:
    """The command on whole notebooks."""

    @pytest.fixture(autouse=True)
    def _in_root(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(notebook_sync, "ROOT", root)

    def test_drift_is_found_and_write_heals_it(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        content = notebook(markdown("# in pack/box.py"), code("# in pack/box.py\ndef half(number): ..."), code("x = 1"))
        path = save(root / "notebooks" / "solutions", "04_box.ipynb", content)
        before = path.read_text()
        assert main([]) == 1
        printed = capsys.readouterr().err
        assert "notebooks/solutions/04_box.ipynb, cell 2: half differs from pack/box.py" in printed
        assert "-def half(number): ..." in printed
        assert "+    return number // 2  # rounded down" in printed
        assert printed.endswith("python -m notebooks.build --text\n"), "the command that mends it comes last"
        assert path.read_text() == before
        assert main(["--write"]) == 0
        assert main([]) == 0
        assert [source_of(cell) for cell in read(path)["cells"]][2] == "x = 1"
        (root / "pack" / "box.py").write_text(PACKAGE.replace("number // 2", "number >> 1"))
        assert main([str(path)]) == 1
        assert "+    return number >> 1" in capsys.readouterr().err

    def test_a_cell_that_cannot_be_filled_in_fails_and_the_others_are_written(
        self, root: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        content = notebook(code("# in pack/box.py\ndef third(): ..."), code("# in pack/box.py\ndef half(): ..."))
        path = save(root / "notebooks", "00_box.ipynb", content)
        assert main(["--write"]) == 1
        assert "00_box.ipynb, cell 1: pack/box.py: third is there nowhere" in capsys.readouterr().err
        sources = [source_of(cell) for cell in read(path)["cells"]]
        assert sources[0] == "# in pack/box.py\ndef third(): ..."
        assert "rounded down" in sources[1]

    def test_what_is_no_notebook_is_an_error(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (root / "bad.ipynb").write_text("{}")
        assert main([str(root / "bad.ipynb")]) == 1
        assert "bad.ipynb: is not a notebook" in capsys.readouterr().err

    def test_generated_notebooks_are_no_sources(self, root: Path) -> None:
        folder = root / "notebooks"
        empty = notebook()
        save(folder, "04_box.ipynb", empty)
        written = [save(folder, "00_start.ipynb", empty)]
        written += [save(folder / "solutions", "04_box.ipynb", empty), save(folder / "demos", "chat.ipynb", empty)]
        assert sources(root) == written

    def test_written_notebooks_are_formatted_as_jupyter_does(self, root: Path) -> None:
        nbformat = pytest.importorskip("nbformat")
        path = save(root, "a.ipynb", notebook(markdown("ü"), code("# in pack/box.py\ndef half(): ...")))
        assert main(["--write", str(path)]) == 0
        assert nbformat.writes(nbformat.read(path, as_version=4)) + "\n" == path.read_text()
        nbformat.validate(json.loads(path.read_text()))


class TestWhatMoves:
    """The package changes under the notebooks: what follows by itself, and what is said where a person has to act."""

    def test_a_cell_follows_its_definitions_into_another_file(self, root: Path) -> None:
        (root / "pack" / "half.py").write_text(part("# Above the function", "# rounded down"))
        (root / "pack" / "box.py").write_text(PACKAGE.replace(part("# Above the function", "# rounded down"), ""))
        content = notebook(
            code("# in pack/box.py\ndef half(): ..."), code("# in pack/gone.py\n@extend(Box)\ndef add(): ...")
        )
        result = sync(content, "a", root)
        assert result.broken == []
        assert [source_of(cell).splitlines()[0] for cell in content["cells"]] == [
            "# in pack/half.py",
            "# in pack/box.py",
        ]
        assert result.shown == {"pack/half.py:half", "pack/box.py:Box.add"}

    def test_a_cell_of_which_a_part_has_moved_is_to_be_divided(self, root: Path) -> None:
        (root / "pack" / "more.py").write_text("Third = 3\n")
        content = notebook(code("# in pack/box.py\ndef half(): ...\nThird = 3"))
        (problem,) = sync(content, "a", root).broken
        assert problem.startswith("a, cell 1: pack/box.py: Third is there nowhere; it is in pack/more.py")
        assert "a cell of its own" in problem

    def test_two_files_with_the_name_leave_the_choice_to_the_writer(self, root: Path) -> None:
        for name in ("one", "two"):
            (root / "pack" / f"{name}.py").write_text("def third() -> None: ...\n")
        (problem,) = sync(notebook(code("# in pack/box.py\ndef third(): ...")), "a", root).broken
        assert "it is in pack/one.py and pack/two.py: mark the cell with the one you mean" in problem

    def test_a_name_that_is_gone(self, root: Path) -> None:
        (problem,) = sync(notebook(code("# in pack/box.py\ndef third(): ...")), "a", root).broken
        assert problem.endswith("no file of pack/ defines third: rename it in the cell, or take it out")

    def test_a_class_shown_whole_gains_a_method(self, root: Path) -> None:
        content = notebook(
            code("# in pack/box.py\nclass Bare: ..."), code("# in pack/box.py\nclass Box:\n    def add(): ...")
        )
        sync(content, "a", root)
        assert [tags(cell) for cell in content["cells"]] == [["whole-Bare"], []]
        third = "    def third(self) -> int:\n        return 3\n"
        changed = PACKAGE.replace("        return 2\n", f"        return 2\n\n{third}")
        changed = changed.replace("    def _hidden", f"{third}\n    def _hidden")
        (root / "pack" / "box.py").write_text(changed)
        result = sync(content, "a", root)
        assert "pack/box.py:Bare.third" in result.shown
        assert "pack/box.py:Box.third" not in result.shown
        assert source_of(content["cells"][0]).endswith("return 3")
        (root / "pack" / "box.py").write_text(PACKAGE)
        assert sync(content, "a", root).broken == [], "and loses it again"
        assert source_of(content["cells"][0]).endswith("return 2")

    def test_a_method_that_is_gone_is_answered_with_those_there_are(self, root: Path) -> None:
        (problem,) = sync(notebook(code("# in pack/box.py\n@extend(Bare)\ndef add(): ...")), "a", root).broken
        assert problem == (
            "a, cell 1: pack/box.py: Bare.add is there nowhere: take it out, or show another in its place "
            "(Bare has first, second, and pack/box.py a method add)"
        )

    @pytest.fixture
    def _package(self, root: Path) -> None:
        """Something to import; importing it would raise."""
        package = root / "nanoinfer" / "cache"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("from nanoinfer.cache.tree import Tree\n")
        (package / "tree.py").write_text("raise SystemExit\nclass Tree: ...\nLIMIT: int = 3\n")
        (package / "leaf.py").write_text("class Leaf: ...\ndef both(): ...\n")
        (package / "other.py").write_text("def both(): ...\n")

    @pytest.mark.usefixtures("_package")
    def test_imports_follow_what_they_import(self, root: Path) -> None:
        right = """import math
from nanoinfer.cache import Tree, tree
from nanoinfer.cache.tree import LIMIT
import nanoinfer.cache.tree"""
        moved = """from nanoinfer.pools import Tree as Radix
if True:
    from nanoinfer.cache.tree import Leaf, LIMIT
x = 1"""
        content = notebook(code(right), code(moved), code("%timeit 1"))
        result = sync(content, "a", root)
        assert result.broken == []
        (message,) = result.refreshed
        assert message.startswith("a, cell 2: imports from where definitions were\n")
        assert source_of(content["cells"][0]) == right
        assert (
            source_of(content["cells"][1])
            == """from nanoinfer.cache.tree import Tree as Radix
if True:
    from nanoinfer.cache.leaf import Leaf
    from nanoinfer.cache.tree import LIMIT
x = 1"""
        )

    @pytest.mark.usefixtures("_package")
    def test_imports_of_what_is_gone_or_in_two_places(self, root: Path) -> None:
        wrong = """from nanoinfer.cache.tree import Twig
from nanoinfer.cache.tree import both
import nanoinfer.gone
import math; from nanoinfer.cache.leaf import Tree"""
        assert sync(notebook(code(wrong)), "a", root).broken == [
            "a, cell 1: `from nanoinfer.cache.tree import Twig` fails: no file of nanoinfer/ defines it",
            "a, cell 1: `from nanoinfer.cache.tree import both` fails: it is in nanoinfer/cache/leaf.py and "
            "nanoinfer/cache/other.py",
            "a, cell 1: there is no module nanoinfer.gone",
            "a, cell 1: `from nanoinfer.cache.leaf import Tree` fails: it is in nanoinfer/cache/tree.py",
        ]


@pytest.mark.parametrize("path", sources(ROOT), ids=lambda path: path.stem)
def test_the_package_cells_of_the_notebooks_are_the_packages_text(path: Path) -> None:
    result = sync(read(path), path.stem, ROOT)
    how = [f"To refresh these cells, in seconds and without running any: {REFRESH}"] if result.refreshed else []
    assert not result.broken + result.refreshed, "\n\n".join(result.broken + result.refreshed + how)
