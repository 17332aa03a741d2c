"""Run a notebook by nbval, as a command: in a fresh kernel, its text outputs compared with those in the file."""

import subprocess
import sys
import tempfile
from pathlib import Path

from notebooks.build import kernel_environment
from notebooks.tools.files import ROOT
from tests.helpers.waiting import HANG_S

# Pictures are not compared, those inside the HTML of a folded answer included; what is said about them is.
SANITIZE = "regex: data:image/[a-z+]+;base64,[A-Za-z0-9+/=]+\nreplace: PICTURE\n"
# No other plugins: some take seconds to load.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
CELL_SECONDS, NOTEBOOK_SECONDS = 2 * HANG_S, 15 * HANG_S  # they only end what hangs


def nbval(path: Path) -> subprocess.CompletedProcess[str]:
    """Exit status 0 when every cell runs and says what it said. Pictures are not compared, texts are."""
    plugins = ["-p", "no:nbval", "-p", "nbval.plugin"]  # once, whether or not pyproject.toml applies to `path`
    plugins += ["-p", "tests.helpers.patient_nbval", "-p", "no:cacheprovider"]
    options = ["--nbval", "--nbval-current-env", "--color=no", "--tb=short"]
    options += [f"--nbval-cell-timeout={CELL_SECONDS}", f"--nbval-kernel-startup-timeout={HANG_S}"]
    with tempfile.TemporaryDirectory(prefix="nbval-", ignore_cleanup_errors=True) as folder:
        patterns = Path(folder) / "sanitize.cfg"
        patterns.write_text(SANITIZE, encoding="utf-8")
        options.append(f"--nbval-sanitize-with={patterns}")
        return subprocess.run(
            [sys.executable, "-m", "pytest", *plugins, *options, str(path)],
            cwd=ROOT,
            env={**kernel_environment(ROOT, folder), **ENVIRONMENT},
            capture_output=True,
            text=True,
            timeout=NOTEBOOK_SECONDS,
            check=False,
        )
