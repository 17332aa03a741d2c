"""Package cells: the package's text, kept in step; and all of the package shown."""

import json
import textwrap
from pathlib import Path

import pytest

from notebooks import sync as notebook_sync
from notebooks.sync import CORE, NOT_TAUGHT, REFRESH, coverage, main, sync
from notebooks.tools.files import ROOT, read, source_of, sources, tags
from notebooks.tools.package_cells import CellError, package_cell
from tests.sample_series import code, markdown, notebook, save

PACKAGE = '''"""A made-up module."""

import math
from dataclasses import dataclass

# How many there are.
# At most.
LIMIT = 3  # counted from 1
Alias = list[int]


# Above the function.
def half(number: int) -> int:
    # the first thing inside
    return number // 2  # rounded down


@dataclass
class Box:
    """A box."""

    # what is in it
    things: list[int]
    lid: bool = True  # closed

    # Above the method.
    @property
    def size(self) -> int:
        """How many.

        Counted.
        """
        return len(self.things)

    def add(self, thing: int) -> None:
        self.things.append(thing)

    @staticmethod
    def empty() -> "Box":
        return Box([])

    def _hidden(self) -> None: ...


class Bare:
    # why it is here
    def first(self) -> int:
        return 1

    def second(self) -> int:
        return 2


def _private() -> None: ...


REGISTRY.update(
    {"half": half},  # by name
)
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with the made-up module pack/box.py."""
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "box.py").write_text(PACKAGE)
    return tmp_path


def text(root: Path, cell: str) -> str:
    """What a cell on pack/box.py becomes, without its first line."""
    made = package_cell("# in pack/box.py\n" + cell, root)
    assert made is not None
    first, _, rest = made.text.partition("\n")
    assert first == "# in pack/box.py"
    compile(rest, "cell", "exec")
    assert package_cell(made.text, root) == made, "a cell that is right stays as it is"
    return rest


def part(begin: str, end: str) -> str:
    return PACKAGE[PACKAGE.index(begin) : PACKAGE.index(end) + len(end)]


class TestCells:
    """What text a cell should have."""

    def test_functions_with_comments_above_and_inside(self, root: Path) -> None:
        assert text(root, "def half(): ...") == part("# Above the function", "# rounded down")

    def test_constants_imports_and_the_docstring(self, root: Path) -> None:
        assert text(root, "LIMIT = 0") == part("# How many", "from 1")
        assert text(root, "LIMIT = 0\nAlias = 0") == part("# How many", "Alias = list[int]")
        assert text(root, "'x'") == '"""A made-up module."""'
        wanted = part("import math", "import dataclass")
        assert text(root, "import math\nfrom dataclasses import dataclass") == wanted

    def test_a_call_is_found_by_what_it_calls(self, root: Path) -> None:
        assert text(root, "REGISTRY.update(...)") == part("REGISTRY.update", "# by name\n)")
        assert text(root, "LIMIT = 0\nREGISTRY.update({})").endswith("# counted from 1\n" + part("REGISTRY", "\n)"))

    def test_a_whole_class(self, root: Path) -> None:
        whole = part("@dataclass", "_hidden(self) -> None: ...")
        assert text(root, "class Box: ...") == whole
        named = "class Box:\n    def size(): ...\n    def _hidden(): ...\n    def add(): ...\n    def empty(): ..."
        assert text(root, named) == whole

    def test_a_class_with_some_methods_keeps_header_docstring_and_fields(self, root: Path) -> None:
        header = part("@dataclass", "# closed")
        assert text(root, "class Box:\n    'only this'") == header
        add = part("    def add", "append(thing)")
        assert text(root, "class Box:\n    def add(): ...") == f"{header}\n\n{add}"
        size = part("    # Above the method", "len(self.things)")
        assert text(root, "class Box:\n    def add(): ...\n    def size(): ...") == f"{header}\n\n{size}\n\n{add}"

    def test_a_class_without_docstring_and_fields(self, root: Path) -> None:
        first = part("class Bare", "return 1")
        assert text(root, "class Bare:\n    def first(): ...") == first
        second = "class Bare:\n" + part("    def second", "return 2")
        assert text(root, "class Bare:\n    def second(): ...") == second
        with pytest.raises(CellError, match="class Bare would be empty"):
            text(root, "class Bare:\n    'no docstring there'")

    def test_a_method_under_extend_is_dedented_with_its_decorators(self, root: Path) -> None:
        size = textwrap.dedent(part("    # Above the method", "len(self.things)"))
        assert text(root, "@extend(Box)\ndef size(): ...") == f"@extend(Box)\n{size}"

    def test_several_definitions_stand_apart(self, root: Path) -> None:
        made = text(root, "@extend(Box)\ndef add(): ...\n@extend(Box)\ndef empty(): ...\nLIMIT = 0\nAlias = 0")
        assert made.count("\n\n\n") == 2
        assert made.endswith("Alias = list[int]")
        made = text(root, "Alias = 0\ndef half(): ...")
        assert made == part("Alias", "# rounded down")

    def test_what_a_cell_shows(self, root: Path) -> None:
        made = package_cell("# in pack/box.py\nclass Box:\n    def add(): ...\n@extend(Box)\ndef size(): ...", root)
        assert made is not None
        assert made.shown == {"Box", "Box.add", "Box.size"}

    def test_other_cells_are_left_alone(self, root: Path) -> None:
        assert package_cell("def half(): ...", root) is None
        assert package_cell("x = 1\n# in pack/box.py\n", root) is None

    @pytest.mark.parametrize(
        "cell",
        [
            "\n# in nanoinfer/batch.py\nclass Batch: ...",
            "x = 1\n# in nanoinfer/batch.py",
            "# In nanoinfer/batch.py:\nclass Batch: ...",
            "#in nanoinfer/batch.py\nclass Batch: ...",
            "# in pack/box.py\ndef half(): ...\n# in nanoinfer/batch.py\nclass Batch: ...",
        ],
    )
    def test_a_mark_that_is_not_the_first_line_is_refused(self, root: Path, cell: str) -> None:
        with pytest.raises(CellError, match="has one such line, its first"):
            package_cell(cell, root)

    def test_line_ends_of_other_systems_are_mended(self, root: Path) -> None:
        made = package_cell("# in pack/box.py\r\ndef half(): ...\r\n", root)
        assert made is not None
        assert "\r" not in made.text
        assert made.text.endswith("# rounded down")

    @pytest.mark.parametrize(
        ("cell", "message"),
        [
            ("# in pack/gone.py\ndef a(): ...", "pack/gone.py: there is no such file"),
            ("# in pack/box.py\ndef third(): ...", "third is there nowhere"),
            ("# in pack/box.py\nclass Third: ...", "has no class Third"),
            ("# in pack/box.py\nclass Box:\n    def third(): ...", "class Box has no third"),
            ("# in pack/box.py\n@extend(Box)\ndef third(): ...", "Box.third is there nowhere"),
            ("# in pack/box.py\n@extend(Third)\ndef add(): ...", "has no class Third"),
            ("# in pack/box.py\nTHIRD = 3", "THIRD is there nowhere"),
            ("# in pack/box.py\nimport os", "`import os` is there nowhere"),
            ("# in pack/box.py\nprint(half(3))", r"`print\(\.\.\.\)` is there nowhere"),
            ("# in pack/box.py\nwith half(3): ...", r"`with half\(3\):` is none of its definitions"),
            ("# in pack/box.py\ndef half(:", "line 2 of the cell"),
            ("# in pack/box.py\n", "names no definition"),
        ],
    )
    def test_what_cannot_be_filled_in_is_refused(self, root: Path, cell: str, message: str) -> None:
        with pytest.raises(CellError, match=message):
            package_cell(cell, root)


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


class TestCoverage:
    """Everything public is shown, or it is said why not."""

    def test_what_is_neither_shown_nor_excused(self, root: Path) -> None:
        cells = [code("# in pack/box.py\nclass Box:\n    def add(): ..."), code("# in pack/box.py\nclass Bare: ...")]
        shown = sync(notebook(*cells), "a", root).shown
        problems = coverage(shown, ["pack/box.py"], {"pack/box.py:half": "it is easy"}, root)
        assert [line.split(": ")[0] for line in problems] == ["pack/box.py:Box.empty", "pack/box.py:Box.size"]

    def test_both_ways_out_are_named(self, root: Path) -> None:
        problems = coverage({"pack/box.py:Box"}, ["pack/box.py"], {}, root)
        (method,) = [line for line in problems if line.startswith("pack/box.py:Box.size: ")]
        for words in ("`# in pack/box.py`", "`@extend(Box)`", "`def size(self): ...`", REFRESH, "NOT_TAUGHT"):
            assert words in method
        assert any("`def half(): ...`" in line for line in problems)
        assert any("`class Bare: ...`" in line for line in problems)

    def test_an_excuse_covers_a_class_with_its_methods_or_a_file(self, root: Path) -> None:
        problems = coverage(set(), ["pack/box.py"], {"pack/box.py:Box": "why"}, root)
        assert {line.split(":")[1] for line in problems} == {"half", "Bare", "Bare.first", "Bare.second"}
        assert coverage(set(), ["pack/box.py"], {"pack/box.py": "why"}, root) == []

    def test_a_folder_stands_for_its_files(self, root: Path) -> None:
        (root / "pack" / "more.py").write_text("def third() -> None: ...\n")
        problems = coverage(set(), ["pack"], {"pack/box.py": "why"}, root)
        assert [line.split(": ")[0] for line in problems] == ["pack/more.py:third"]

    def test_a_core_file_that_is_gone(self, root: Path) -> None:
        (problem,) = coverage(set(), ["pack/gone.py"], {}, root)
        assert problem == "pack/gone.py: no such file, but CORE in notebooks/sync.py names it"

    def test_excuses_must_be_needed_exist_and_give_a_reason(self, root: Path) -> None:
        shown = {f"pack/box.py:{name}" for name in ("Box", "Box.add", "Box.size", "Box.empty", "half", "Bare")}
        shown |= {"pack/box.py:Bare.first"}
        excuses = {"pack/box.py:half": "why", "pack/box.py:gone": "why", "pack/box.py:Bare.second": " "}
        assert [line.split(": ")[1] for line in coverage(shown, ["pack/box.py"], excuses, root)] == [
            "NOT_TAUGHT excuses it, but a notebook shows it",
            "NOT_TAUGHT excuses it, but it is no public definition",
            "NOT_TAUGHT gives no reason",
        ]


@pytest.mark.parametrize("path", sources(ROOT), ids=lambda path: path.stem)
def test_the_package_cells_of_the_notebooks_are_the_packages_text(path: Path) -> None:
    result = sync(read(path), path.stem, ROOT)
    how = [f"To refresh these cells, in seconds and without running any: {REFRESH}"] if result.refreshed else []
    assert not result.broken + result.refreshed, "\n\n".join(result.broken + result.refreshed + how)


def test_between_them_the_notebooks_show_every_public_definition_of_the_core() -> None:
    shown = {name for path in sources(ROOT) for name in sync(read(path), path.stem, ROOT).shown}
    problems = coverage(shown, CORE, NOT_TAUGHT, ROOT)
    assert not problems, "\n".join(problems)
