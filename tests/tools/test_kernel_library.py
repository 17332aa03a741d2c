"""The compiled kernels as a file: without its compiler, damaged, and from two processes at once. What goes wrong with a
shared library kills its process, so every case runs in one of its own.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nanoinfer.kernels import build
from nanoinfer.kernels.cpp import CppKernels

pytestmark = pytest.mark.slow

LOAD = """
import torch
from nanoinfer.kernels import select_kernels, selection_of
kernels = select_kernels("auto", torch.float32, torch.device("cpu"))
x = torch.ones(1, 8)
assert kernels.linear(x, kernels.pack(torch.ones(8, 8)), None, 8).tolist() == [[8.0] * 8]
print(selection_of(kernels))
"""


def environment(cache: Path, **changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("CXX", "NANOINFER_CXXFLAGS")}
    return {**kept, "NANOINFER_CACHE": str(cache), "OMP_NUM_THREADS": "1", **changes}


def loaded(cache: Path, **changes: str) -> str:
    """What a process selects that finds its kernels in `cache`."""
    result = subprocess.run(
        [sys.executable, "-c", LOAD], env=environment(cache, **changes), capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"exit code {result.returncode}: {result.stderr[-2000:]}"
    return result.stdout.strip()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but the library, compiled by whatever compiler is found without settings."""
    if (reason := CppKernels.why_not(torch.float32, torch.device("cpu"))) is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("original")
    assert loaded(folder) == "cpp"
    return folder


@pytest.fixture
def cache(original: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    folder = tmp_path / "cache"
    folder.mkdir()
    for file in original.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.fixture
def no_compiler(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "empty").mkdir()
    return {"PATH": str(tmp_path / "empty")}


def library_in(cache: Path) -> Path:
    (file,) = cache.iterdir()
    return file


def test_a_library_is_used_after_its_compiler_is_gone(cache: Path, no_compiler: dict[str, str]) -> None:
    assert loaded(cache, **no_compiler) == "cpp"
    assert loaded(cache, **no_compiler, CXX="/no/such/g++") == "cpp"


def test_other_flags_need_another_library(cache: Path, no_compiler: dict[str, str]) -> None:
    said = loaded(cache, **no_compiler, NANOINFER_CXXFLAGS="-O1")
    assert "not cpp: no C++ compiler: neither $CXX nor g++ nor c++ is found" in said


def test_a_compiler_that_is_not_found_is_named(tmp_path: Path) -> None:
    said = loaded(tmp_path, CXX="/no/such/g++")
    assert "no C++ compiler: $CXX names /no/such/g++, which is not found, and" in said
    assert "install g++ or set CXX" in said


def test_a_cache_that_cannot_be_made_is_named_with_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = loaded(tmp_path / "file" / "cache")
    assert f"not cpp: the folder for compiled kernels, {tmp_path}/file/cache, cannot be created" in said
    assert "set NANOINFER_CACHE" in said


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda content: content[: len(content) // 2],
    "a page": lambda content: content[:4096],
    "nothing": lambda content: b"",
    "the last byte": lambda content: content[:-1],
    "zeros inside": lambda content: content[:8192] + bytes(16384) + content[8192 + 16384 :],
    "text": lambda content: b"not a library",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_without_a_compiler_a_damaged_library_is_refused_in_words(
    damage: str, cache: Path, no_compiler: dict[str, str]
) -> None:
    file = library_in(cache)
    file.write_bytes(DAMAGE[damage](file.read_bytes()))
    said = loaded(cache, **no_compiler)
    assert "not cpp: no C++ compiler" in said
    assert f"{cache} has no intact library from an earlier build; install g++ or set CXX" in said


def test_with_a_compiler_a_damaged_library_is_compiled_again(cache: Path) -> None:
    file = library_in(cache)
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    other = file.with_name(f"{file.stem[:-3]}abc.so")  # damaged, too: its name is the checksum of something else
    other.write_bytes(content)
    assert loaded(cache) == "cpp"
    assert library_in(cache).stat().st_size > len(content) // 2, "and the damaged ones are gone"


@pytest.mark.usefixtures("original")
def test_two_processes_may_compile_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOAD]
    running = [
        subprocess.Popen(command, env=environment(tmp_path), stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    assert [process.communicate()[0].strip() for process in running] == ["cpp", "cpp"]
    left = list(tmp_path.iterdir())
    assert left
    assert all(build._is_whole(file) for file in left), "nothing temporary, nothing damaged"


def test_what_a_compiler_leaves_that_is_no_library_is_refused_in_words(tmp_path: Path) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nfor out; do :; done\necho "not a library" > "$out"\n')
    compiler.chmod(0o755)
    assert "not cpp: " in loaded(tmp_path / "cache", CXX=str(compiler))
