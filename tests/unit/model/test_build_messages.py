"""Who waits for the kernels to be compiled is told so: one line, with a dot for every second."""

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.kernels import build
from tests.helpers.own_names import module_with


class SlowCompiler:
    """Takes two seconds and a bit, and fails if it is asked to link."""

    def __init__(self, command: list[str], **options: Any):
        self.returncode, self._seconds = int("-shared" in command), 2

    def __enter__(self) -> "SlowCompiler":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def communicate(self, timeout: float) -> tuple[str, None]:
        if self._seconds:
            self._seconds -= 1
            raise subprocess.TimeoutExpired("g++", timeout)
        return "error: no room\n", None


def test_compiling_draws_one_line_with_a_dot_for_every_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "subprocess", module_with(subprocess, Popen=SlowCompiler))
    monkeypatch.setattr(build, "time", module_with(time, monotonic=iter((10.0, 14.4)).__next__))
    with pytest.raises(KernelsUnavailableError, match="g\\+\\+ failed: error: no room"):
        build._compile(["g++"], [], tmp_path, "kernels")
    said = "nanoinfer: compiling its kernels for this processor, which happens once .... 4 s\n"
    assert capsys.readouterr() == ("", said)
