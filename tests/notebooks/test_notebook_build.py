"""`python -m notebooks.build`: from a notebook with solutions to the student's notebook, run and tidy."""

from pathlib import Path
from typing import Any

import pytest

from notebooks.build import build, check, refresh_text, selected
from notebooks.tools.files import ROOT, read, source_of, write
from notebooks.tools.student import NotebookError
from tests.helpers.waiting import HANG_S
from tests.nbval_run import nbval
from tests.sample_series import PACKAGE, code, markdown, notebook, save, series

pytestmark = pytest.mark.usefixtures("checks_folder")

LIMIT = int(HANG_S)  # seconds for a cell


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with this checkout's package, and notebooks of its own."""
    (tmp_path / "nanoinfer").symlink_to(ROOT / "nanoinfer")
    (tmp_path / "notebooks").mkdir()
    return tmp_path


@pytest.fixture
def _the_users_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of IPython, with a startup file that changes what cells say; of Jupyter, with another kernel `python3`."""
    startup = tmp_path / "ipython" / "profile_default" / "startup" / "mine.py"
    startup.parent.mkdir(parents=True)
    startup.write_text("import builtins\nbuiltins.print = lambda *_: None\n")
    kernel = tmp_path / "jupyter" / "kernels" / "python3" / "kernel.json"
    kernel.parent.mkdir(parents=True)
    kernel.write_text('{"argv": ["/nowhere/python", "{connection_file}"], "display_name": "x", "language": "python"}')
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))


@pytest.mark.slow
@pytest.mark.usefixtures("_the_users_configuration")
def test_a_build_from_source_to_committed_form(root: Path, checks_folder: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    pytest.importorskip("nbval")
    content = series()
    setup = f"import notebooks.course.checks as checks\nchecks.__path__.append({str(checks_folder)!r})"
    content["cells"][1]["source"] += f"\n{setup}"
    content["cells"].insert(2, code(PACKAGE.replace("alloc", "available_size")))
    content["cells"].insert(3, code("import os\nprint('a'); print(os.path.basename(os.getcwd()))\n1 + 1"))
    content["cells"].insert(6, code('with attempt("90.1"):\n    print(lowest([2, 1], 1))'))
    source = save(root / "notebooks" / "solutions", "90_sample.ipynb", content)

    target = build(source, root, timeout=LIMIT)
    assert target == root / "notebooks" / "90_sample.ipynb"
    made = read(target)
    nbformat.validate(nbformat.read(target, as_version=4))
    assert nbformat.writes(nbformat.read(target, as_version=4)) + "\n" == target.read_text()
    outputs = [[output.get("text", output.get("data")) for output in cell.get("outputs", [])] for cell in made["cells"]]
    assert outputs[3] == [["a\n", "notebooks\n"], {"text/plain": ["2"]}]
    assert outputs[6] == [["90.1: not written yet.\n"]]
    (hint,) = made["cells"][5]["outputs"]
    assert hint["traceback"] == ["NotWritten: 90.1 The lowest first: not written yet."]
    assert [cell["execution_count"] for cell in made["cells"] if cell["cell_type"] == "code"] == list(range(1, 11))
    assert "return self._rows.available_size()" in source_of(made["cells"][2])
    assert "return self._rows.available_size()" in source_of(read(source)["cells"][2]), "the source is refreshed too"
    assert all(not cell.get("outputs") for cell in read(source)["cells"])

    first, written = target.read_text(), source.read_text()
    assert check(source, root) == []
    assert refresh_text(source, root) == (target, False, [])
    assert (target.read_text(), source.read_text()) == (first, written), "nothing changed, so nothing changes"

    assert '"ename": "NotWritten"' in first
    target.write_text(
        first.replace('"notebooks\\n"', '"elsewhere\\n"').replace('"ename": "NotWritten"', '"ename": "Passed"')
    )
    differs = nbval(target)
    assert differs.returncode == 1
    assert "elsewhere" in differs.stdout
    assert "Passed" in differs.stdout, "what a check raises is compared, too"
    assert "4 failed, 6 passed" in differs.stdout


def test_a_notebook_without_exercises_is_its_own_source(root: Path) -> None:
    path = save(root / "notebooks" / "demos", "chat.ipynb", notebook(code(PACKAGE)))
    assert refresh_text(path, root) == (path, True, [])
    assert "def alloc(self, need_size" in source_of(read(path)["cells"][0])


@pytest.mark.slow
def test_a_failing_cell_is_named_and_nothing_is_written(root: Path) -> None:
    pytest.importorskip("ipykernel")
    path = save(root / "notebooks", "00_start.ipynb", notebook(markdown("# a"), code("x = 1"), code("1 / 0")))
    before = path.read_text()
    with pytest.raises(NotebookError, match="00_start, cell 3: raises ZeroDivisionError: division by zero"):
        build(path, root, timeout=LIMIT)
    assert path.read_text() == before


@pytest.mark.slow
def test_a_cell_that_never_ends_is_named_and_nothing_is_written(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This cell is given a second; those before it, and the kernel's start, as long as they need."""
    pytest.importorskip("ipykernel")
    from nbclient import NotebookClient

    def seconds(client: NotebookClient, cell: dict[str, Any]) -> int:
        return 1 if cell is not None and "while True" in cell["source"] else LIMIT

    monkeypatch.setattr(NotebookClient, "_get_timeout", seconds)
    path = save(
        root / "notebooks", "00_start.ipynb", notebook(markdown("# a"), code("x = 1"), code("while True: pass"))
    )
    before = path.read_text()
    with pytest.raises(NotebookError, match=f"00_start, cell 3: took more than {LIMIT} s"):
        build(path, root, timeout=LIMIT)
    assert path.read_text() == before


def test_check_says_what_is_out_of_date_and_how_to_mend_it(root: Path) -> None:
    source = save(root / "notebooks" / "solutions", "90_sample.ipynb", series())
    again = "python -m notebooks.build 90_sample"
    (problem,) = check(source, root)
    assert problem.endswith(again)
    target, _, stale = refresh_text(source, root)
    assert len(stale) == 7, "nothing has been run"
    assert check(source, root) == []
    text = target.read_text()
    target.write_text(text.replace("Which goes first?", "Which goes last?"))
    (problem,) = check(source, root)
    assert problem.startswith("90_sample.ipynb, cell 1: ")
    target.write_text(text.replace("def twice(number)", "def twice(n)"))
    (problem,) = check(source, root)
    assert problem.startswith("90_sample.ipynb, cell 5: ")
    assert problem.endswith(again)
    save(root / "notebooks", "90_sample.ipynb", notebook())
    (problem,) = check(source, root)
    assert problem.endswith(again)


def test_a_refreshed_text_keeps_the_outputs_of_what_prints_the_same(root: Path) -> None:
    """Package cells only define things, and comments print nothing. A cell with other code has to be run."""
    content = series()
    content["cells"].insert(2, code(PACKAGE))
    content["cells"].insert(3, code("print(3)"))
    source = save(root / "notebooks" / "solutions", "90_sample.ipynb", content)
    target, _, _ = refresh_text(source, root)
    made = read(target)
    made["cells"][3]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["3\n"]}]
    made["cells"][2]["source"] = made["cells"][2]["source"][:-2]
    write(target, made)
    content["cells"][3]["source"] = "# how many\nprint( 3 )"
    write(source, content)
    assert refresh_text(source, root) == (target, True, [])
    assert check(source, root) == []
    assert read(target)["cells"][3]["outputs"] == made["cells"][3]["outputs"]
    content["cells"][3]["source"] = "print(4)"
    write(source, content)
    _, _, (stale,) = refresh_text(source, root)
    assert "cell 4" in stale
    assert read(target)["cells"][3]["outputs"] == []


def test_notebooks_are_chosen_by_number_name_or_path(root: Path) -> None:
    first = save(root / "notebooks", "00_start.ipynb", notebook())
    solution = save(root / "notebooks" / "solutions", "04_pools.ipynb", notebook())
    demo = save(root / "notebooks" / "demos", "chat.ipynb", notebook())
    save(root / "notebooks", "04_pools.ipynb", notebook())  # generated from the solutions, so it is no source
    assert selected([], root) == [first, solution, demo]
    assert selected(["04", "04_pools", "notebooks/04_pools.ipynb"], root) == [solution]
    assert selected(["demos/chat", "00"], root) == [demo, first]
    with pytest.raises(ValueError, match="05"):
        selected(["05"], root)
