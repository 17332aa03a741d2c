"""What hangs, floods, crashes or outlives its grader costs only itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from notebooks.tools.files import ROOT
from tests.helpers.waiting import HANG_S, until
from tests.notebooks.grading import TIME_FLIES, GradersClock, graded, outcomes
from tests.sample_series import code, save, series

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("checks_folder")]


def test_endless_loops_and_crashes_cost_only_themselves(
    checks_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check's loop is ended by its process, a cell that ends for nothing by the grader; what a killed process leaves
    does not meet the next."""
    clock = GradersClock(monkeypatch, tmp_path)
    content = series(
        {
            "90.1": f"def lowest(free, n):\n    exec({TIME_FLIES!r})\n    while True:\n        pass",
            "90.2": "import os, shutil\ndef twice(number):\n    shutil.rmtree(os.getcwd())\n    os._exit(3)",
        }
    )
    stubborn = f"while True:\n    try:\n        exec({TIME_FLIES!r})\n        while True: pass\n    except:\n"
    content["cells"].insert(2, code(stubborn + f"        {clock.hangs}\n        while True: pass"))
    crash = "import ctypes\nopen('json.py', 'w').write('raise SystemExit')\nctypes.string_at(0)"
    content["cells"].insert(3, code(crash))
    content["cells"].insert(4, code("raise ValueError('nobody minds')"))
    result = graded(checks_folder, tmp_path, content, total=1e9)
    assert outcomes(result) == ["timeout", "crashed", "passed"]
    assert result.notes == ["timeout in cell 3", "crashed in cell 4"]
    assert result.raised == {5: "ValueError: nobody minds"}


def test_the_time_for_all_ends_it_and_keeps_the_marks(
    checks_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = 100 * HANG_S
    clock = GradersClock(monkeypatch, tmp_path, leap=total)
    content = series({"90.3": f"{clock.hangs}\nwhile True: pass\ndef rows(pool, n): ..."})
    result = graded(checks_folder, tmp_path, content, timeout=2 * total, total=total)
    assert outcomes(result) == ["passed", "passed", "not reached"]
    assert result.notes == ["no time left in cell 7"]


def test_a_flood_of_messages_and_endless_texts_change_nothing_else(
    checks_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flood goes on until the grader has looked at its clock too often."""
    GradersClock(monkeypatch, tmp_path)
    flood = """
import os
def write(fd):
    while True:
        try:
            os.write(fd, b"x" * 65536)
        except OSError:
            return
        except KeyboardInterrupt:
            pass
for fd in range(3, 64):
    write(fd)
"""
    endless = "def lowest(free, n):\n    raise ValueError('\\udcff\\x1b[2J' + 10**6 * 'x')"
    content = series({"90.1": endless})
    content["cells"].insert(3, code(flood))
    result = graded(checks_folder, tmp_path, content, total=1e9)
    assert outcomes(result) == ["wrong", "passed", "passed"]
    assert result.notes == ["timeout in cell 4"]
    assert len(result.texts["90.1"]) < 3000
    assert "your code raises ValueError: ??[2J" in result.texts["90.1"], "as it can be printed anywhere"


def _runs(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
def test_no_submission_outlives_a_grader_that_is_killed(checks_folder: Path, tmp_path: Path) -> None:
    content = series()
    endless = "import os\nopen(os.environ['TOLD'], 'w').write(f'{os.getpid()}\\n')\n"
    endless += "while True:\n    try:\n        while True: pass\n    except BaseException:\n        pass"
    content["cells"].insert(2, code(endless))
    path, report = save(tmp_path, "90_sample.ipynb", content), tmp_path / "report"
    grader = subprocess.Popen(
        [sys.executable, "-m", "notebooks.grade", str(path), "--checks", str(checks_folder)],
        cwd=ROOT,
        env={**os.environ, "TOLD": str(report), "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
    )
    try:
        until(lambda: report.exists() and report.read_text().endswith("\n"), "the cell's report")
    finally:
        grader.kill()
        grader.wait()
    until(lambda: not _runs(int(report.read_text())), "the submission's end")
