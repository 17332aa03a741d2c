"""Package cells in whole notebooks: kept in step with the package."""

import ast
import importlib
from importlib.util import find_spec
from pathlib import Path

import pytest

from notebooks import sync as notebook_sync
from notebooks.sync import REFRESH, main, sync
from notebooks.tools.files import ROOT, read, source_of, sources, tags
from tests.sample_package import PACKAGE, save_package
from tests.sample_series import code, markdown, notebook, save

GENERATED = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))


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

    def test_generated_notebooks_are_no_sources(self, root: Path) -> None:
        folder = root / "notebooks"
        empty = notebook()
        save(folder, "04_box.ipynb", empty)
        written = [save(folder, "00_start.ipynb", empty)]
        written += [save(folder / "solutions", "04_box.ipynb", empty), save(folder / "demos", "chat.ipynb", empty)]
        assert sources(root) == written


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
