"""`python -m notebooks.build --text`: the text is the package's again, and every output stays."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from notebooks.build import check, refresh_text
from notebooks.tools.files import ROOT, read, source_of, write
from notebooks.tools.outputs import shown_code
from tests.sample_series import code, notebook, save, series

pytestmark = pytest.mark.usefixtures("checks_folder")

BOX = '''"""A made-up module."""

LIMIT = 3


class Box:
    """A box."""

    def size(self) -> int:
        return LIMIT
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with a package that can be changed, and notebook 90 as an earlier run left it."""
    (tmp_path / "nanoinfer").symlink_to(ROOT / "nanoinfer")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "box.py").write_text(BOX)
    content = series()
    content["cells"].insert(2, code("# in pack/box.py\nclass Box: ..."))
    content["cells"].insert(3, code("print(Box().size())"))
    source = save(tmp_path / "notebooks" / "solutions", "90_sample.ipynb", content)
    target, _, _ = refresh_text(source, tmp_path)
    made = read(target)
    for count, cell in enumerate((cell for cell in made["cells"] if cell["cell_type"] == "code"), 1):
        cell["execution_count"] = count
    made["cells"][3]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["3\n"]}]
    write(target, made)
    return tmp_path


def paths(root: Path) -> tuple[Path, Path]:
    return root / "notebooks" / "solutions" / "90_sample.ipynb", root / "notebooks" / "90_sample.ipynb"


def test_a_changed_docstring_and_a_new_method_reach_both_notebooks_and_outputs_stay(root: Path) -> None:
    source, target = paths(root)
    before = read(target)
    method = "    def lid(self) -> bool:\n        return True\n"
    (root / "pack" / "box.py").write_text(BOX.replace("A box.", "A box with a lid.") + f"\n{method}")
    (problem,) = check(source, root)
    assert problem.endswith("cell 3: is not what its source gives: python -m notebooks.build --text")
    assert refresh_text(source, root) == (target, True, [])
    assert check(source, root) == []
    after = read(target)
    for made in (after, read(source)):
        assert "A box with a lid." in source_of(made["cells"][2])
        assert "def lid" in source_of(made["cells"][2])
    for cell, old in zip(after["cells"], before["cells"], strict=True):
        assert cell.get("outputs") == old.get("outputs")
        assert cell.get("execution_count") == old.get("execution_count")


def test_code_that_is_shown_is_compared_without_its_docstrings(root: Path) -> None:
    source, target = paths(root)
    before = shown_code(target)
    assert before
    assert shown_code(root / "nowhere.ipynb") == set()
    (root / "pack" / "box.py").write_text(BOX.replace("A box.", "A box with a lid."))
    refresh_text(source, root)
    assert shown_code(target) == before
    (root / "pack" / "box.py").write_text(BOX.replace("return", "return 1 +"))
    refresh_text(source, root)
    assert shown_code(target) != before


def test_imports_and_comments_may_change_above_an_output(root: Path) -> None:
    source, target = paths(root)
    content = read(source)
    content["cells"][3]["source"] = "import math\n\n# how many\nprint(Box().size( ))"
    write(source, content)
    assert refresh_text(source, root) == (target, True, [])
    assert read(target)["cells"][3]["outputs"][0]["text"] == ["3\n"]


def test_a_new_package_cell_moves_the_counts_of_those_behind_it(root: Path) -> None:
    source, target = paths(root)
    content = read(source)
    content["cells"].insert(2, code("# in pack/box.py\nLIMIT = 0"))
    write(source, content)
    assert refresh_text(source, root) == (target, True, [])
    made = [cell for cell in read(target)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in made] == list(range(1, len(made) + 1))
    assert [len(cell["outputs"]) for cell in made][:4] == [0, 0, 0, 1]


def test_imports_may_move_to_a_new_cell_of_their_own(root: Path) -> None:
    source, target = paths(root)
    content = read(source)
    content["cells"].insert(3, code("# Imports: what is below\nimport math"))
    write(source, content)
    assert refresh_text(source, root) == (target, True, [])
    made = [cell for cell in read(target)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in made] == list(range(1, len(made) + 1))
    assert [len(cell["outputs"]) for cell in made][:4] == [0, 0, 0, 1]


def test_a_cell_with_other_code_loses_its_output_and_is_named(root: Path) -> None:
    source, target = paths(root)
    content = read(source)
    content["cells"][3]["source"] = "print(Box().size() + 1)"
    content["cells"].append(code("print(1)"))
    write(source, content)
    _, _, stale = refresh_text(source, root)
    run = "run it: python -m notebooks.build 90_sample"
    assert stale == [
        f"90_sample.ipynb, cell 4: its code has changed, so its output is gone; {run}",
        f"90_sample.ipynb, cell 11: is new; {run}",
    ]
    assert read(target)["cells"][3]["outputs"] == []
    assert read(target)["cells"][3]["execution_count"] is None


@pytest.mark.slow
def test_the_command_that_a_failure_names_mends_it(tmp_path: Path) -> None:
    """In a copy of this project, with one notebook."""
    for folder in ("nanoinfer", "notebooks"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "*.ipynb"))
    content = notebook(code("# in nanoinfer/model/forward_batch.py\nclass ForwardMode: ..."), code("print(3)"))
    content["cells"][1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["3\n"]}]
    path, file = save(tmp_path / "notebooks", "00_modes.ipynb", content), "nanoinfer/model/forward_batch.py"

    def command(line: str) -> "subprocess.CompletedProcess[str]":
        arguments = [sys.executable, *line.split()[1:]]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return subprocess.run(arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert refresh_text(path, tmp_path) == (path, True, [])
    text = (tmp_path / file).read_text()
    changed = text.replace('class ForwardMode(Enum):\n    """', 'class ForwardMode(Enum):\n    """Changed. ')
    assert changed != text
    (tmp_path / file).write_text(changed)
    failed = command("python -m notebooks.sync")
    assert failed.returncode == 1
    assert "ForwardMode" in failed.stderr
    done = command(failed.stderr.splitlines()[-1].rpartition(": ")[2])
    assert done.returncode == 0, done.stderr
    assert command("python -m notebooks.sync").returncode == 0
    assert check(path, tmp_path) == []
    assert "Changed. " in source_of(read(path)["cells"][0])
    assert read(path)["cells"][1]["outputs"] == content["cells"][1]["outputs"]
