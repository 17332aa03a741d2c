"""Run a notebook by nbval, as a command: in a kernel of its own, its text outputs compared with those in the file. For
that command this module is also a plugin, which lets a busy machine take its time."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from notebooks.build import kernel_environment
from notebooks.tools.files import ROOT, add_tag, read, write
from notebooks.tools.student import exercise_ids
from tests.helpers.waiting import HANG_S

# Pictures are not compared, those inside the HTML of a folded answer included; what is said about them is.
SANITIZE = "regex: data:image/[a-z+]+;base64,[A-Za-z0-9+/=]+\nreplace: PICTURE\n"
# No other plugins: some take seconds to load.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
ENVIRONMENT["NOTEBOOKS_REAL_MODEL"] = "off"  # cells with the real model take minutes; their outputs are not compared
CELL_SECONDS, NOTEBOOK_SECONDS = 2 * HANG_S, 15 * HANG_S  # they only end what hangs


def nbval(path: Path) -> subprocess.CompletedProcess[str]:
    """Exit status 0 when every cell runs and says what it said. Pictures are not compared, texts are."""
    plugins = ["-p", "no:nbval", "-p", "nbval.plugin"]  # once, whether or not pyproject.toml applies to `path`
    plugins += ["-p", "tests.nbval_run", "-p", "no:cacheprovider"]
    options = ["--nbval", "--nbval-current-env", "--color=no", "--tb=short"]
    options += [f"--nbval-cell-timeout={CELL_SECONDS}", f"--nbval-kernel-startup-timeout={HANG_S}"]
    with tempfile.TemporaryDirectory(prefix="nbval-", ignore_cleanup_errors=True) as folder:
        patterns = Path(folder) / "sanitize.cfg"
        patterns.write_text(SANITIZE, encoding="utf-8")
        options.append(f"--nbval-sanitize-with={patterns}")
        command = [sys.executable, "-m", "pytest", *plugins, *options, str(path)]
        environment = {**kernel_environment(ROOT, folder), **ENVIRONMENT}
        return subprocess.run(
            command, env=environment, cwd=ROOT, timeout=NOTEBOOK_SECONDS, capture_output=True, text=True, check=False
        )


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Wait for a kernel's answers and outputs, for which nbval has a few seconds, until it must be hanging."""
    from nbval.kernel import RunningKernel
    from nbval.plugin import IPyNbCell

    # Set to 5 in __init__; here it cannot be set.
    IPyNbCell.output_timeout = property(lambda self: HANG_S, lambda self, value: None)
    await_reply = RunningKernel.await_reply

    def patient(self: Any, msg_id: str, timeout: float | None = None) -> None:
        await_reply(self, msg_id, None if timeout is None else max(timeout, HANG_S))

    RunningKernel.await_reply = patient


def nbval_then_solved(path: Path, solution: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """As `nbval`, for a student's notebook with its solution behind it, from the first exercise to the last check; both are
    put together in `folder`.

    What the second part prints is not compared, but none of it may raise unless the solution itself says so: it is what
    somebody runs who has run the whole notebook first and solves the exercises then.
    """
    both, cells = read(path), read(solution)["cells"]
    exercises = [i for i, cell in enumerate(cells) if exercise_ids(cell, "exercise")]
    checks = [i for i, cell in enumerate(cells) if exercise_ids(cell, "check")]
    for cell in cells[exercises[0] : checks[-1] + 1]:
        if cell["cell_type"] == "code":
            add_tag(cell, "nbval-ignore-output")
            cell["id"] = f"solved-{cell['id']}"
            both["cells"].append(cell)
    write(folder / path.name, both)
    return nbval(folder / path.name)
