"""Package cells: what text a cell should have, and whole notebooks that are kept in step with the package."""

import ast
import importlib
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

from notebooks import sync as notebook_sync
from notebooks.sync import REFRESH, main, sync
from notebooks.tools.files import ROOT, read, source_of, sources, tags
from notebooks.tools.package_cells import CellError, package_cell
from tests.sample_series import code, markdown, notebook, save

GENERATED = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
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


def part(begin: str, end: str) -> str:
    """What of it stands between two texts, both included."""
    return PACKAGE[PACKAGE.index(begin) : PACKAGE.index(end) + len(end)]


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


HEADER = part("@dataclass", "# closed")
WHOLE = part("@dataclass", "_hidden(self) -> None: ...")
ADD, SIZE = part("    def add", "append(thing)"), part("    # Above the method", "len(self.things)")
SECOND = part("    def second", "return 2")


@pytest.mark.parametrize(
    ("cell", "wanted"),
    [
        ("def half(): ...", part("# Above the function", "# rounded down")),
        ("LIMIT = 0", part("# How many", "from 1")),
        ("LIMIT = 0\nAlias = 0", part("# How many", "Alias = list[int]")),
        ("'x'", '"""A made-up module."""'),
        ("import math\nfrom dataclasses import dataclass", part("import math", "import dataclass")),
        ("REGISTRY.update(...)", part("REGISTRY.update", "# by name\n)")),
        ("Alias = 0\nREGISTRY.update({})", "Alias = list[int]\n" + part("REGISTRY", "\n)")),
        ("class Box: ...", WHOLE),
        ("class Box:\n    def size(): ...\n    def _hidden(): ...\n    def add(): ...\n    def empty(): ...", WHOLE),
        ("class Box:\n    'only this'", HEADER),
        ("class Box:\n    def add(): ...", f"{HEADER}\n\n{ADD}"),
        ("class Box:\n    def add(): ...\n    def size(): ...", f"{HEADER}\n\n{SIZE}\n\n{ADD}"),
        ("class Bare:\n    def first(): ...", part("class Bare", "return 1")),
        ("class Bare:\n    def second(): ...", f"class Bare:\n{SECOND}"),
        ("@extend(Box)\ndef size(): ...", f"@extend(Box)\n{textwrap.dedent(SIZE)}"),
        ("Alias = 0\ndef half(): ...", part("Alias", "# rounded down")),
        ("@extend(Box)\ndef add(): ...\nAlias = 0", f"@extend(Box)\n{textwrap.dedent(ADD)}\n\n\nAlias = list[int]"),
    ],
)
def test_a_cell_has_the_text_of_what_it_names(root: Path, cell: str, wanted: str) -> None:
    assert text(root, cell) == wanted


def test_other_cells_are_left_alone(root: Path) -> None:
    assert package_cell("def half(): ...", root) is None
    assert package_cell("x = 1\n# in pack/box.py\n", root) is None


@pytest.mark.parametrize(
    "cell",
    [
        "\n# in nanoinfer/scheduler/batch.py\nclass Batch: ...",
        "x = 1\n# in nanoinfer/scheduler/batch.py",
        "# In nanoinfer/scheduler/batch.py:\nclass Batch: ...",
        "# in pack/box.py\ndef half(): ...\n# in nanoinfer/scheduler/batch.py\nclass Batch: ...",
    ],
)
def test_a_mark_that_is_not_the_first_line_is_refused(root: Path, cell: str) -> None:
    with pytest.raises(CellError, match="has one such line, its first"):
        package_cell(cell, root)


@pytest.mark.parametrize(
    "cell",
    [
        "# in pack/gone.py\ndef a(): ...",
        "# in pack/box.py\ndef third(): ...",
        "# in pack/box.py\nclass Box:\n    def third(): ...",
        "# in pack/box.py\nclass Bare:\n    'no docstring there'",
        "# in pack/box.py\nTHIRD = 3",
        "# in pack/box.py\nprint(half(3))",
        "# in pack/box.py\ndef half(:",
    ],
)
def test_what_cannot_be_filled_in_is_refused(root: Path, cell: str) -> None:
    with pytest.raises(CellError, match=r"pack/\w+\.py"):
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
        assert "notebooks/solutions/04_box.ipynb, cell 2: differs from pack/box.py" in printed
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


def test_a_class_shown_whole_gains_a_method(root: Path) -> None:
    content = notebook(
        code("# in pack/box.py\nclass Bare: ..."), code("# in pack/box.py\nclass Box:\n    def add(): ...")
    )
    sync(content, "a", root)
    assert [tags(cell) for cell in content["cells"]] == [["whole-Bare"], []]
    third = "    def third(self) -> int:\n        return 3\n"
    changed = PACKAGE.replace("        return 2\n", f"        return 2\n\n{third}")
    changed = changed.replace("    def _hidden", f"{third}\n    def _hidden")
    (root / "pack" / "box.py").write_text(changed)
    sync(content, "a", root)
    assert "third" not in source_of(content["cells"][1])
    assert source_of(content["cells"][0]).endswith("return 3")
    (root / "pack" / "box.py").write_text(PACKAGE)
    assert sync(content, "a", root).broken == [], "and loses it again"
    assert source_of(content["cells"][0]).endswith("return 2")


@pytest.mark.parametrize(
    "path", sorted({*sources(ROOT), *GENERATED}), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_what_a_notebook_imports_of_the_package_is_there(path: Path) -> None:
    for number, cell in enumerate(read(path)["cells"], 1):
        source = "\n".join(line for line in source_of(cell).split("\n") if not line.startswith(("%", "!")))
        for node in ast.walk(ast.parse(source)) if cell["cell_type"] == "code" else ():
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("nanoinfer", "notebooks")):
                module = importlib.import_module(node.module or "")
                for alias in node.names:
                    known = hasattr(module, alias.name) or find_spec(f"{node.module}.{alias.name}")
                    assert known, f"cell {number}: from {node.module} import {alias.name}"


@pytest.mark.parametrize("path", sources(ROOT), ids=lambda path: path.stem)
def test_the_package_cells_of_the_notebooks_are_the_packages_text(path: Path) -> None:
    result = sync(read(path), path.stem, ROOT)
    how = [f"To refresh these cells, in seconds and without running any: {REFRESH}"] if result.refreshed else []
    assert not result.broken + result.refreshed, "\n\n".join(result.broken + result.refreshed + how)
