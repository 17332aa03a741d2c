"""Runs nbval in forks of one process that has imported what notebooks import. `tests.nbval_run` starts it.

Each line on stdin is a run, a JSON list: pytest's arguments, and a folder that takes its settings and `output`. A line on
stdout is its exit status. In these runs this module is a plugin: kernels are forks, too, and a busy machine may take its
time.
"""

import json
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from notebooks.build import kernel_environment
from notebooks.tools.files import ROOT
from notebooks.tools.intact import load_all
from tests.helpers.waiting import HANG_S

sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment] # as in tests/conftest.py
NOTEBOOK_SECONDS = int(15 * HANG_S)  # it only ends what hangs


class Kernel:
    """A fork that waits until it is launched. Then it is what `Popen` would have started."""

    stdin = stdout = stderr = None

    def __init__(self) -> None:
        order, self._order = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._order)
            with open(order, encoding="utf-8") as file:
                _run_kernel(file.read())
        os.setpgid(self.pid, self.pid)
        os.close(order)

    def launch(self, cmd: list[str], *, env: dict[str, str], cwd: str, **_: Any) -> "Kernel":
        """In place of jupyter_client's `launch_kernel`."""
        order = {"arguments": cmd[2:], "environment": {**env, "JPY_PARENT_PID": str(os.getpid())}, "folder": cwd}
        with open(self._order, "w", encoding="utf-8") as file:
            json.dump(order, file)
        return self

    def poll(self) -> int | None:
        if self.returncode is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(ended[1])
        return self.returncode

    wait = poll  # asked only of what has ended

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def _run_kernel(order: str) -> None:
    """Be a kernel, and end with it. Without an order, its run has ended without a kernel."""
    try:
        if order:
            launch = json.loads(order)
            os.environ.clear()
            os.environ.update(launch["environment"])
            os.chdir(launch["folder"])
            sys.argv = launch["arguments"]
            from ipykernel.kernelapp import launch_new_instance

            launch_new_instance()
    finally:
        os._exit(0)


def serve() -> None:
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # a kernel's, before matplotlib reads it
    transformers = ("transformers.models.llama.modeling_llama", "transformers.tokenization_utils_tokenizers")
    for module in ("ipykernel.kernelapp", "ipywidgets", "matplotlib.figure", "nbval.plugin", *transformers):
        import_module(module)
    load_all()
    for line in sys.stdin:
        run = os.fork()
        if run == 0:
            _run_pytest(*json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(run, 0)[1]), flush=True)


def _run_pytest(arguments: list[str], folder: str) -> None:
    with open(Path(folder) / "output", "wb") as output, open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ.update(kernel_environment(ROOT, folder))
    from jupyter_client.provisioning import local_provisioner

    local_provisioner.launch_kernel = Kernel().launch  # type: ignore[assignment]
    signal.alarm(NOTEBOOK_SECONDS)
    status = pytest.main(arguments)
    sys.stdout.flush()
    os._exit(status)


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
