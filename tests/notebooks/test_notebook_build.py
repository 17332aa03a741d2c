"""From a notebook with solutions to the student's notebook, run and tidy."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nanoinfer.teaching import checks
from notebooks.build import build, check, main, refresh_text, selected
from notebooks.tools.files import ROOT, read, source_of, tags, write
from notebooks.tools.outputs import shown_code
from notebooks.tools.student import NotebookError, student_notebook
from notebooks.tools.tidy import output_problems, tidy, tidy_outputs
from tests.nbval_run import nbval
from tests.sample_series import PACKAGE, SOLUTIONS, code, markdown, notebook, save, save_checks, series

BOX = '''"""A made-up module."""

LIMIT = 3


class Box:
    """A box."""

    def size(self) -> int:
        return LIMIT
'''


@pytest.fixture(autouse=True)
def checks_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The checks of notebook 90."""
    folder = save_checks(tmp_path_factory.mktemp("checks"))
    checks.__path__.append(str(folder))
    yield folder
    checks.__path__.pop()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with this checkout's package, and notebooks of its own."""
    (tmp_path / "nanoinfer").symlink_to(ROOT / "nanoinfer")
    (tmp_path / "notebooks").mkdir()
    return tmp_path


def problems(content: dict[str, Any], name: str = "90_sample") -> str:
    with pytest.raises(NotebookError) as caught:
        student_notebook(content, name)
    return str(caught.value)


class TestStudentNotebook:
    """Solutions cleared, and what could be forgotten."""

    def test_solutions_become_stubs_and_the_rest_stays(self) -> None:
        head, rest = "def lowest(free, n):\n    '''Doc.'''\n    if n:\n", "\n    return x"
        solution = f"{head}        ### BEGIN SOLUTION\n        x = 1\n\n        y = 2\n        ### END SOLUTION{rest}"
        content = series({"90.1": solution})
        made = student_notebook(content, "90_sample")
        assert source_of(made["cells"][2]) == f'{head}        raise NotImplementedError("exercise 90.1"){rest}'
        assert tags(made["cells"][3]) == ["check-90.1", "raises-exception"]
        assert [source_of(made["cells"][i]) for i in (0, 1, 3)] == [source_of(content["cells"][i]) for i in (0, 1, 3)]
        assert source_of(content["cells"][2]) == solution, "the solution is left alone"
        assert tags(content["cells"][3]) == ["check-90.1"]

    def test_what_does_not_fit_together_is_named_with_its_cell(self) -> None:
        block = SOLUTIONS["90.1"]
        content = series({"90.1": "def lowest(): ...", "90.2": SOLUTIONS["90.2"].replace("### END SOLUTION", "")})
        content["cells"].append(code(block))
        content["cells"][3]["metadata"] = {}
        found = problems(content).splitlines()
        assert found == [
            "90_sample, cell 3: exercise 90.1 has no solution block (### BEGIN SOLUTION ... ### END SOLUTION)",
            "90_sample, cell 4: checks 90.1, but its tags check- say nothing",
            "90_sample, cell 5: ### BEGIN SOLUTION and ### END SOLUTION do not match",
            "90_sample, cell 9: a solution block, but no tag exercise-N.M",
            "90_sample, cell 3: exercise 90.1 has no check cell (tag check-90.1)",
        ]

    @pytest.mark.parametrize(
        "sloppy", ["### Begin Solution", "###BEGIN SOLUTION", "### BEGIN SOLUTION:", "x = 1 # BEGIN SOLUTION"]
    )
    def test_a_mark_that_would_not_be_found_is_refused(self, sloppy: str) -> None:
        content = series({"90.1": f"{SOLUTIONS['90.1']}\n    {sloppy}\n    secret = 3"})
        assert problems(content) == (
            f"90_sample, cell 3: `{sloppy}` is not a line ### BEGIN SOLUTION or ### END SOLUTION: "
            "students would see what it marks"
        )

    def test_ids_must_be_known_of_this_notebook_and_there_once(self) -> None:
        content = series()
        content["cells"] += [code(SOLUTIONS["90.1"], "exercise-90.1"), code(SOLUTIONS["90.1"], "exercise-90.9")]
        content["cells"] += [code('check("5.1", globals())', "check-5.1"), markdown("?")]
        content["cells"][-1]["metadata"]["tags"] = ["exercise-90.1"]
        found = problems(content)
        assert "cell 9: exercise-90.1 is there already, in cell 3" in found
        assert "cell 10: exercise-90.9 has no checker (checks of notebook 90: 90.1, 90.2, 90.3)" in found
        assert "cell 10: exercise 90.9 has no check cell" in found
        assert "cell 11: check-5.1 is not of notebook 90" in found
        assert "cell 12: tag exercise-90.1 on a cell that is not code" in found

    def test_an_exercise_that_the_notebook_leaves_out_is_named(self) -> None:
        content = series()
        del content["cells"][6:8]
        assert problems(content) == "90_sample: no cell has the tag exercise-90.3"

    def test_several_exercises_in_a_cell_and_a_check_before_its_exercise(self) -> None:
        content = series()
        content["cells"].insert(2, content["cells"].pop(3))
        content["cells"].append(code(SOLUTIONS["90.1"], "exercise-90.4", "exercise-90.5"))
        found = problems(content)
        assert "cell 3: check 90.1 comes before its exercise" in found
        assert "cell 9: holds several exercises (90.4, 90.5): must be one per cell" in found

    def test_the_name_has_a_number(self) -> None:
        assert "begins with its number" in problems(series(), "sample")


class TestTidy:
    """What a committed notebook looks like."""

    def test_cells_and_metadata(self) -> None:
        content = notebook(markdown("# a\n"), code("\nx = 1\n\n", "parameters"))
        content["cells"][1]["metadata"] |= {"collapsed": True, "lines_to_next_cell": 2}
        content["metadata"] = {"jupytext": {}, "widgets": {}, "language_info": {"version": "3.11.7"}}
        tidy(content)
        assert [cell["id"] for cell in content["cells"]] == ["cell-001", "cell-002"]
        assert content["cells"][1]["metadata"] == {"tags": ["parameters"]}
        assert source_of(content["cells"][1]) == "x = 1"
        assert set(content["metadata"]) == {"kernelspec", "language_info"}
        assert "version" not in content["metadata"]["language_info"]

    def test_outputs(self) -> None:
        def printed(name: str, text: str) -> dict[str, Any]:
            return {"output_type": "stream", "name": name, "text": text}

        content = notebook(markdown("m"), code("x"), code("y"))
        content["cells"][1]["outputs"] = [printed("stdout", "a\n"), printed("stdout", "b"), printed("stderr", "c")]
        content["cells"][2]["outputs"] = [
            {"output_type": "execute_result", "execution_count": 9, "metadata": {}, "data": {"text/plain": "1\n2"}},
            {"output_type": "error", "ename": "Hint", "evalue": "why", "traceback": ["\x1b[0m", "File /x/y.py"]},
        ]
        tidy_outputs(content)
        first, second = content["cells"][1:]
        assert [output["text"] for output in first["outputs"]] == [["a\n", "b"], ["c"]]
        assert (first["execution_count"], second["execution_count"]) == (1, 2)
        assert second["outputs"][0]["data"] == {"text/plain": ["1\n", "2"]}
        assert second["outputs"][0]["execution_count"] == 2
        assert second["outputs"][1]["traceback"] == ["Hint: why"]

    @pytest.mark.parametrize(
        ("output", "said"),
        [
            ({"output_type": "stream", "name": "stdout", "text": f"in {ROOT}/data"}, "absolute path"),
            (
                {"output_type": "stream", "name": "stdout", "text": ["/usr/lib/python3/", "site-packages/x"]},
                "absolute path",
            ),
            ({"output_type": "stream", "name": "stderr", "text": "Warning"}, "writes to stderr"),
            ({"output_type": "stream", "name": "stdout", "text": "<Req object at 0x7f1261124a40>"}, "memory address"),
            (
                {"output_type": "display_data", "data": {"text/html": f"<a href='{ROOT}/a'>"}, "metadata": {}},
                "absolute",
            ),
            (
                {
                    "output_type": "display_data",
                    "data": {"application/vnd.jupyter.widget-view+json": {}},
                    "metadata": {},
                },
                "widget",
            ),
        ],
    )
    def test_what_must_not_be_committed(self, output: dict[str, Any], said: str) -> None:
        content = notebook(code("x"))
        assert output_problems(content, "a") == []
        content["cells"][0]["outputs"] = [output]
        (problem,) = output_problems(content, "a")
        assert problem.startswith("a, cell 1: ")
        assert said in problem


class TestBuild:
    """`python -m notebooks.build`."""

    @pytest.fixture
    def _the_users_configuration(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of IPython, with a startup file that changes what cells say; of Jupyter, with another kernel `python3`."""
        startup = tmp_path / "ipython" / "profile_default" / "startup" / "mine.py"
        startup.parent.mkdir(parents=True)
        startup.write_text("import builtins\nbuiltins.print = lambda *_: None\n")
        kernel = tmp_path / "jupyter" / "kernels" / "python3" / "kernel.json"
        kernel.parent.mkdir(parents=True)
        kernel.write_text(
            '{"argv": ["/nowhere/python", "{connection_file}"], "display_name": "x", "language": "python"}'
        )
        monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
        monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))

    @pytest.mark.usefixtures("_the_users_configuration")
    def test_a_build_from_source_to_committed_form(self, root: Path, checks_folder: Path) -> None:
        nbformat = pytest.importorskip("nbformat")
        pytest.importorskip("ipykernel")
        pytest.importorskip("nbval")
        content = series()
        setup = f"import nanoinfer.teaching.checks as checks\nchecks.__path__.append({str(checks_folder)!r})"
        content["cells"][1]["source"] += f"\n{setup}"
        content["cells"].insert(2, code(PACKAGE.replace("alloc", "available_size")))
        content["cells"].insert(3, code("import os\nprint('a'); print(os.path.basename(os.getcwd()))\n1 + 1"))
        content["cells"].insert(6, code('with attempt("90.1"):\n    print(lowest([2, 1], 1))'))
        source = save(root / "notebooks" / "solutions", "90_sample.ipynb", content)

        target = build(source, root, timeout=60)
        assert target == root / "notebooks" / "90_sample.ipynb"
        made = read(target)
        nbformat.validate(nbformat.read(target, as_version=4))
        assert nbformat.writes(nbformat.read(target, as_version=4)) + "\n" == target.read_text()
        outputs = [
            [output.get("text", output.get("data")) for output in cell.get("outputs", [])] for cell in made["cells"]
        ]
        assert outputs[3] == [["a\n", "notebooks\n"], {"text/plain": ["2"]}]
        assert outputs[6] == [["90.1: not written yet.\n"]]
        (hint,) = made["cells"][5]["outputs"]
        assert hint["traceback"] == ["NotWritten: 90.1 The lowest first: not written yet."]
        assert [cell["execution_count"] for cell in made["cells"] if cell["cell_type"] == "code"] == list(range(1, 11))
        assert "return self._rows.available_size()" in source_of(made["cells"][2])
        assert "return self._rows.available_size()" in source_of(read(source)["cells"][2]), (
            "the source is refreshed too"
        )
        assert all(not cell.get("outputs") for cell in read(source)["cells"])

        first, written = target.read_text(), source.read_text()
        assert check(source, root) == []
        assert refresh_text(source, root) == (target, False, [])
        assert (target.read_text(), source.read_text()) == (first, written), "nothing changed, so nothing changes"

        again = nbval(target)
        assert again.returncode == 0, again.stdout
        target.write_text(first.replace('"notebooks\\n"', '"elsewhere\\n"'))
        assert "elsewhere" in nbval(target).stdout
        target.write_text(first.replace("not written yet", "right"))
        assert nbval(target).returncode == 1

    def test_a_notebook_without_exercises_is_its_own_source(self, root: Path) -> None:
        path = save(root / "notebooks" / "demos", "chat.ipynb", notebook(code(PACKAGE)))
        assert refresh_text(path, root) == (path, True, [])
        assert "def alloc(self, need_size" in source_of(read(path)["cells"][0])

    def test_a_failing_cell_is_named_and_nothing_is_written(self, root: Path) -> None:
        pytest.importorskip("ipykernel")
        path = save(root / "notebooks", "00_start.ipynb", notebook(markdown("# a"), code("x = 1"), code("1 / 0")))
        before = path.read_text()
        with pytest.raises(NotebookError, match="00_start, cell 3: raises ZeroDivisionError: division by zero"):
            build(path, root, timeout=60)
        path.write_text(path.read_text().replace("1 / 0", "while True: pass"))
        with pytest.raises(NotebookError, match="00_start, cell 3: took more than 1 s"):
            build(path, root, timeout=1)
        assert path.read_text() == before.replace("1 / 0", "while True: pass")

    def test_check_says_what_is_out_of_date_and_how_to_mend_it(self, root: Path) -> None:
        source = save(root / "notebooks" / "solutions", "90_sample.ipynb", series())
        again = "python -m notebooks.build 90_sample"
        assert check(source, root) == [f"90_sample.ipynb: has not been built from solutions/90_sample.ipynb: {again}"]
        target, _, _ = refresh_text(source, root)
        assert check(source, root) == []
        text = target.read_text()
        target.write_text(text.replace("Which goes first?", "Which goes last?"))
        seconds = "python -m notebooks.build --text"
        assert check(source, root) == [f"90_sample.ipynb, cell 1: is not what its source gives: {seconds}"]
        target.write_text(text.replace("def twice(number)", "def twice(n)"))
        assert check(source, root) == [f"90_sample.ipynb, cell 5: is not what its source gives: {again}"]
        save(root / "notebooks", "90_sample.ipynb", notebook())
        assert check(source, root) == [f"90_sample.ipynb: has 0 cells instead of 8: {again}"]

    def test_notebooks_are_chosen_by_number_name_or_path(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        first = save(root / "notebooks", "00_start.ipynb", notebook())
        solution = save(root / "notebooks" / "solutions", "04_pools.ipynb", notebook())
        demo = save(root / "notebooks" / "demos", "chat.ipynb", notebook())
        assert selected([], root) == [first, solution, demo]
        assert selected(["04", "04_pools", "notebooks/04_pools.ipynb"], root) == [solution]
        assert selected(["demos/chat", "00"], root) == [demo, first]
        with pytest.raises(ValueError, match="no notebook '05': there are 00_start, 04_pools, chat"):
            selected(["05"], root)
        with pytest.raises(SystemExit):
            main(["nonsense"])
        assert "there is no notebook 'nonsense'" in capsys.readouterr().err


class TestText:
    """`python -m notebooks.build --text`: the text is the package's again, and every output stays."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
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

    @staticmethod
    def paths(root: Path) -> tuple[Path, Path]:
        return root / "notebooks" / "solutions" / "90_sample.ipynb", root / "notebooks" / "90_sample.ipynb"

    def test_a_changed_docstring_and_a_new_method_reach_both_notebooks_and_outputs_stay(self, root: Path) -> None:
        source, target = self.paths(root)
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

    def test_code_that_is_shown_is_compared_without_its_docstrings(self, root: Path) -> None:
        source, target = self.paths(root)
        before = shown_code(target)
        assert before
        assert shown_code(root / "nowhere.ipynb") == set()
        (root / "pack" / "box.py").write_text(BOX.replace("A box.", "A box with a lid."))
        refresh_text(source, root)
        assert shown_code(target) == before
        (root / "pack" / "box.py").write_text(BOX.replace("return", "return 1 +"))
        refresh_text(source, root)
        assert shown_code(target) != before

    def test_imports_and_comments_may_change_above_an_output(self, root: Path) -> None:
        source, target = self.paths(root)
        content = read(source)
        content["cells"][3]["source"] = "import math\n\n# how many\nprint(Box().size( ))"
        write(source, content)
        assert refresh_text(source, root) == (target, True, [])
        assert read(target)["cells"][3]["outputs"][0]["text"] == ["3\n"]

    def test_a_new_package_cell_moves_the_counts_of_those_behind_it(self, root: Path) -> None:
        source, target = self.paths(root)
        content = read(source)
        content["cells"].insert(2, code("# in pack/box.py\nLIMIT = 0"))
        write(source, content)
        assert refresh_text(source, root) == (target, True, [])
        made = [cell for cell in read(target)["cells"] if cell["cell_type"] == "code"]
        assert [cell["execution_count"] for cell in made] == list(range(1, len(made) + 1))
        assert [len(cell["outputs"]) for cell in made][:4] == [0, 0, 0, 1]

    def test_a_cell_with_other_code_loses_its_output_and_is_named(self, root: Path) -> None:
        source, target = self.paths(root)
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

    def test_the_command_that_a_failure_names_mends_it(self, tmp_path: Path) -> None:
        """In a copy of this project, with one notebook."""
        for folder in ("nanoinfer", "notebooks"):
            shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "*.ipynb"))
        content = notebook(code("# in nanoinfer/model/input_metadata.py\nclass ForwardMode: ..."), code("print(3)"))
        content["cells"][1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["3\n"]}]
        path, file = save(tmp_path / "notebooks", "00_modes.ipynb", content), "nanoinfer/model/input_metadata.py"

        def command(line: str) -> "subprocess.CompletedProcess[str]":
            arguments = [sys.executable, *line.split()[1:]]
            environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
            return subprocess.run(arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

        assert command("python -m notebooks.build --text").returncode == 0
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
        assert command("python -m notebooks.build --check").returncode == 0
        assert "Changed. " in source_of(read(path)["cells"][0])
        assert read(path)["cells"][1]["outputs"] == content["cells"][1]["outputs"]
