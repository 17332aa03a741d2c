"""The compiled kernels as a file: without its compiler, damaged, and from two processes at once. What goes wrong with a
shared library kills its process, so it is loaded in processes of its own.

The compiler here is a script that copies the library which this process uses. What a real one makes is tested in
tests/numerics/test_choosing_kernels.py.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nanoinfer.model.kernels import build
from nanoinfer.model.kernels.cpp import CppKernels
from tests.helpers.waiting import HANG_S

pytestmark = pytest.mark.slow

# Says, a line each, what is selected in each of the environments that it is told, one after another.
LOAD = """
import json, os, sys
import torch
from nanoinfer.model.kernels import build, select_kernels, selection_of
for environment in json.load(sys.stdin):
    os.environ.clear()
    os.environ.update(environment)
    build.library_or_reason.cache_clear()
    kernels = select_kernels("auto", torch.float32, torch.device("cpu"))
    x = torch.ones(1, 8)
    assert kernels.linear(x, kernels.pack(torch.ones(8, 8)), None, 8).tolist() == [[8.0] * 8]
    print(selection_of(kernels), flush=True)
"""


def environment(cache: Path, **changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("CXX", "NANOINFER_CXXFLAGS")}
    return {**kept, "NANOINFER_CACHE": str(cache), "OMP_NUM_THREADS": "1", **changes}


def started(*environments: dict[str, str]) -> subprocess.Popen[str]:
    """A process that selects kernels in each of these environments."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", LOAD], stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdin is not None
    process.stdin.write(json.dumps(environments))
    process.stdin.close()
    process.stdin = None  # so that `communicate` does not close it again
    return process


def selected(process: subprocess.Popen[str]) -> list[str]:
    """What it has selected in each of them."""
    said, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, f"exit code {process.returncode} after {said!r}: {errors[-2000:]}"
    return said.splitlines()


def script(file: Path, text: str) -> str:
    """Write a shell script; returns its path as an environment variable has it."""
    file.write_text(f"#!/bin/sh\n{text}")
    file.chmod(0o755)
    return str(file)


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A compiler that copies this process's library to its last argument; before that, it runs what `$FIRST` holds."""
    if (reason := CppKernels.why_not(torch.float32, torch.device("cpu"))) is not None:
        pytest.skip(reason)
    library = build._found_or_compiled()
    copy = f'eval "$FIRST"\nfor out; do :; done\ncp \'{library}\' "$out"\n'
    return script(tmp_path_factory.mktemp("compiler") / "compiler", copy)


@pytest.fixture(scope="module")
def original(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but the library."""
    folder = tmp_path_factory.mktemp("original")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("NANOINFER_CXXFLAGS", raising=False)
        patch.setenv("CXX", compiler)
        patch.setenv("NANOINFER_CACHE", str(folder))
        build._found_or_compiled()
    return folder


def copied(original: Path, folder: Path, damage: Callable[[bytes], bytes]) -> Path:
    """A folder with the library, damaged."""
    folder.mkdir()
    for file in original.iterdir():
        (folder / file.name).write_bytes(damage(file.read_bytes()))
    return folder


def library_in(cache: Path) -> Path:
    (file,) = cache.iterdir()
    return file


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda content: content[: len(content) // 2],
    "nothing": lambda content: b"",
    "zeros inside": lambda content: content[:8192] + bytes(16384) + content[8192 + 16384 :],
}


@pytest.fixture(scope="module")
def said(original: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What one process selects in each case, and says of it; FOLDER stands for the folder of all caches."""
    folder = tmp_path_factory.mktemp("cases")
    (folder / "empty").mkdir()
    (folder / "file").write_text("")
    no_library = script(folder / "no library", 'for out; do :; done\necho "not a library" > "$out"\n')
    no_compiler = {"PATH": str(folder / "empty")}
    cases = {
        "no compiler": environment(original, **no_compiler),
        "a compiler that is gone": environment(original, **no_compiler, CXX="/no/such/g++"),
        "other flags": environment(original, **no_compiler, NANOINFER_CXXFLAGS="-O1"),
        "neither": environment(folder / "new", CXX="/no/such/g++"),
        "no folder": environment(folder / "file" / "cache", CXX=f"'{no_library}'"),
        "no library": environment(folder / "made", CXX=f"'{no_library}'"),
    }
    for name, damage in DAMAGE.items():
        cases[name] = environment(copied(original, folder / name, damage), **no_compiler)
    lines = selected(started(*cases.values()))
    return {case: line.replace(str(folder), "FOLDER") for case, line in zip(cases, lines, strict=True)}


def test_a_library_is_used_after_its_compiler_is_gone(said: dict[str, str]) -> None:
    assert said["no compiler"] == said["a compiler that is gone"] == "cpp"


@pytest.mark.parametrize(
    ("case", "named"),
    [
        ("other flags", "no C++ compiler"),
        ("neither", "$CXX names /no/such/g++"),
        ("no folder", "FOLDER/file/cache"),
        ("no library", "not cpp: "),
        *((damage, f"FOLDER/{damage}") for damage in DAMAGE),
    ],
)
def test_why_there_is_no_library_is_said_by_name(case: str, named: str, said: dict[str, str]) -> None:
    assert "not cpp: " in said[case]
    assert named in said[case]


def test_with_a_compiler_a_damaged_library_is_compiled_again(original: Path, compiler: str, tmp_path: Path) -> None:
    cache = copied(original, tmp_path / "cache", DAMAGE["half"])
    whole, half = library_in(original).read_bytes(), library_in(cache)
    other = half.with_name(f"{half.stem[:-3]}abc.so")  # damaged, too: its name is the checksum of something else
    other.write_bytes(whole)
    assert selected(started(environment(cache, CXX=compiler))) == ["cpp"]
    assert library_in(cache).read_bytes() == whole, "and the damaged ones are gone"


def test_two_processes_may_compile_at_once(compiler: str, tmp_path: Path) -> None:
    """Neither compiler goes on before the other one runs."""
    cache, running = tmp_path / "cache", tmp_path / "running"
    running.mkdir()
    meet = f"touch '{running}'/$$; until [ \"$(ls '{running}' | wc -l)\" -ge 2 ]; do sleep 0.01; done"
    processes = [started(environment(cache, CXX=compiler, FIRST=meet)) for _ in range(2)]
    assert [selected(process) for process in processes] == [["cpp"], ["cpp"]]
    left = list(cache.iterdir())
    assert left
    assert all(build._is_whole(file) for file in left), "nothing temporary, nothing damaged"
