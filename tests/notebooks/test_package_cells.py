"""Package cells: what text a cell should have."""

import textwrap
from pathlib import Path

import pytest

from notebooks.tools.package_cells import CellError, package_cell
from tests.sample_package import part, save_package


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with the made-up module pack/box.py."""
    return save_package(tmp_path)


def text(root: Path, cell: str) -> str:
    """What a cell on pack/box.py becomes, without its first line."""
    made = package_cell("# in pack/box.py\n" + cell, root)
    assert made is not None
    first, _, rest = made.text.partition("\n")
    assert first == "# in pack/box.py"
    compile(rest, "cell", "exec")
    assert package_cell(made.text, root) == made, "a cell that is right stays as it is"
    return rest


def test_functions_with_comments_above_and_inside(root: Path) -> None:
    assert text(root, "def half(): ...") == part("# Above the function", "# rounded down")


def test_constants_imports_and_the_docstring(root: Path) -> None:
    assert text(root, "LIMIT = 0") == part("# How many", "from 1")
    assert text(root, "LIMIT = 0\nAlias = 0") == part("# How many", "Alias = list[int]")
    assert text(root, "'x'") == '"""A made-up module."""'
    wanted = part("import math", "import dataclass")
    assert text(root, "import math\nfrom dataclasses import dataclass") == wanted


def test_a_call_is_found_by_what_it_calls(root: Path) -> None:
    assert text(root, "REGISTRY.update(...)") == part("REGISTRY.update", "# by name\n)")
    assert text(root, "LIMIT = 0\nREGISTRY.update({})").endswith("# counted from 1\n" + part("REGISTRY", "\n)"))


def test_a_whole_class(root: Path) -> None:
    whole = part("@dataclass", "_hidden(self) -> None: ...")
    assert text(root, "class Box: ...") == whole
    named = "class Box:\n    def size(): ...\n    def _hidden(): ...\n    def add(): ...\n    def empty(): ..."
    assert text(root, named) == whole


def test_a_class_with_some_methods_keeps_header_docstring_and_fields(root: Path) -> None:
    header = part("@dataclass", "# closed")
    assert text(root, "class Box:\n    'only this'") == header
    add = part("    def add", "append(thing)")
    assert text(root, "class Box:\n    def add(): ...") == f"{header}\n\n{add}"
    size = part("    # Above the method", "len(self.things)")
    assert text(root, "class Box:\n    def add(): ...\n    def size(): ...") == f"{header}\n\n{size}\n\n{add}"


def test_a_class_without_docstring_and_fields(root: Path) -> None:
    first = part("class Bare", "return 1")
    assert text(root, "class Bare:\n    def first(): ...") == first
    second = "class Bare:\n" + part("    def second", "return 2")
    assert text(root, "class Bare:\n    def second(): ...") == second
    with pytest.raises(CellError, match="class Bare would be empty"):
        text(root, "class Bare:\n    'no docstring there'")


def test_a_method_under_extend_is_dedented_with_its_decorators(root: Path) -> None:
    size = textwrap.dedent(part("    # Above the method", "len(self.things)"))
    assert text(root, "@extend(Box)\ndef size(): ...") == f"@extend(Box)\n{size}"


def test_several_definitions_stand_apart(root: Path) -> None:
    made = text(root, "@extend(Box)\ndef add(): ...\n@extend(Box)\ndef empty(): ...\nLIMIT = 0\nAlias = 0")
    assert made.count("\n\n\n") == 2
    assert made.endswith("Alias = list[int]")
    made = text(root, "Alias = 0\ndef half(): ...")
    assert made == part("Alias", "# rounded down")


def test_other_cells_are_left_alone(root: Path) -> None:
    assert package_cell("def half(): ...", root) is None
    assert package_cell("x = 1\n# in pack/box.py\n", root) is None


@pytest.mark.parametrize(
    "cell",
    [
        "\n# in nanoinfer/scheduling/batch.py\nclass Batch: ...",
        "x = 1\n# in nanoinfer/scheduling/batch.py",
        "# In nanoinfer/scheduling/batch.py:\nclass Batch: ...",
        "x = 1\n# in notebooks/course/regular_expression.py",
        "#in nanoinfer/scheduling/batch.py\nclass Batch: ...",
        "# in pack/box.py\ndef half(): ...\n# in nanoinfer/scheduling/batch.py\nclass Batch: ...",
    ],
)
def test_a_mark_that_is_not_the_first_line_is_refused(root: Path, cell: str) -> None:
    with pytest.raises(CellError, match="has one such line, its first"):
        package_cell(cell, root)


def test_line_ends_of_other_systems_are_mended(root: Path) -> None:
    made = package_cell("# in pack/box.py\r\ndef half(): ...\r\n", root)
    assert made is not None
    assert "\r" not in made.text
    assert made.text.endswith("# rounded down")


@pytest.mark.parametrize(
    "cell",
    [
        "# in pack/gone.py\ndef a(): ...",
        "# in pack/box.py\ndef third(): ...",
        "# in pack/box.py\nclass Third: ...",
        "# in pack/box.py\nclass Box:\n    def third(): ...",
        "# in pack/box.py\n@extend(Box)\ndef third(): ...",
        "# in pack/box.py\n@extend(Third)\ndef add(): ...",
        "# in pack/box.py\nTHIRD = 3",
        "# in pack/box.py\nimport os",
        "# in pack/box.py\nprint(half(3))",
        "# in pack/box.py\nwith half(3): ...",
        "# in pack/box.py\ndef half(:",
        "# in pack/box.py\n",
    ],
)
def test_what_cannot_be_filled_in_is_refused(root: Path, cell: str) -> None:
    with pytest.raises(CellError, match=r"pack/\w+\.py"):
        package_cell(cell, root)
