"""Run a notebook by nbval: in a kernel of its own, its text outputs compared with those in the file."""

import json
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from notebooks.build import kernel_environment
from notebooks.tools.files import ROOT, add_tag, read, write
from notebooks.tools.student import exercise_ids
from tests.helpers.waiting import HANG_S

# Pictures are not compared, those inside the HTML of a folded answer included; what is said about them is.
SANITIZE = "regex: data:image/[a-z+]+;base64,[A-Za-z0-9+/=]+\nreplace: PICTURE\n"
# No other plugins: some take seconds to load.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
ENVIRONMENT["NOTEBOOKS_REAL_MODEL"] = "off"  # cells with the real model take minutes; their outputs are not compared
CELL_SECONDS = 2 * HANG_S  # it only ends what hangs


@cache
def _server() -> subprocess.Popen[str]:
    """It ends with this process, which holds the other end of its stdin."""
    command = [sys.executable, "-c", "from tests.nbval_server import serve\nserve()"]
    environment = {**kernel_environment(ROOT, ""), **ENVIRONMENT}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)


def nbval(path: Path) -> subprocess.CompletedProcess[str]:
    """Exit status 0 when every cell runs and says what it said. Pictures are not compared, texts are."""
    plugins = ["-p", "no:nbval", "-p", "nbval.plugin"]  # once, whether or not pyproject.toml applies to `path`
    plugins += ["-p", "tests.nbval_server", "-p", "no:cacheprovider"]
    options = ["--nbval", "--nbval-current-env", "--color=no", "--tb=short"]
    options += [f"--nbval-cell-timeout={CELL_SECONDS}", f"--nbval-kernel-startup-timeout={HANG_S}"]
    with tempfile.TemporaryDirectory(prefix="nbval-", ignore_cleanup_errors=True) as folder:
        patterns = Path(folder) / "sanitize.cfg"
        patterns.write_text(SANITIZE, encoding="utf-8")
        options.append(f"--nbval-sanitize-with={patterns}")
        server, arguments = _server(), [*plugins, *options, str(path)]
        print(json.dumps([arguments, folder]), file=server.stdin, flush=True)
        assert server.stdout is not None
        status = int(server.stdout.readline())
        return subprocess.CompletedProcess(arguments, status, (Path(folder) / "output").read_text(encoding="utf-8"))


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
