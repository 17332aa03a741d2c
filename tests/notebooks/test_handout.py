"""The series as students get it: complete without the checkout, and without solutions."""

from pathlib import Path

import pytest

from notebooks.build import execute
from notebooks.handout import hand_out, main
from notebooks.tools.files import ROOT, read, sources
from tests.helpers.waiting import HANG_S


def test_it_has_every_notebook_and_no_solution(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "course"
    assert main([str(folder)]) == 0
    assert capsys.readouterr().out.startswith(f"cd {folder}\n")
    handed_out = {path.name for path in folder.rglob("*.ipynb")}
    assert handed_out == {path.name for path in sources(ROOT)}
    assert not [path for path in folder.rglob("*.ipynb") if "BEGIN SOLUTION" in path.read_text(encoding="utf-8")]
    with pytest.raises(SystemExit):
        main([str(folder)])


@pytest.mark.slow
def test_a_notebook_runs_in_its_folder(tmp_path: Path) -> None:
    pytest.importorskip("ipykernel")
    hand_out(tmp_path)
    notebook = read(tmp_path / "notebooks" / "01_an_engine_in_150_lines.ipynb")
    where = {
        "cell_type": "code",
        "id": "where",
        "metadata": {},
        "outputs": [],
        "execution_count": None,
        "source": "import nanoinfer.llm, notebooks.course\nprint(nanoinfer.__file__, notebooks.course.__file__)",
    }
    notebook["cells"].append(where)
    done = execute(notebook, "01", tmp_path / "notebooks", tmp_path, int(HANG_S))
    (output,) = done["cells"][-1]["outputs"]
    assert "".join(output["text"]).split() == [
        str(tmp_path / name / "__init__.py") for name in ("nanoinfer", "notebooks/course")
    ]
