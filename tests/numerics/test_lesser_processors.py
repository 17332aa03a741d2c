"""The kernels compiled without some of this CPU's instructions: their tests hold, and 8 and 4 bits give the same numbers.

Where the sources are compiled to the same with these flags as without, there is nothing that the quick ring does not test.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.kernels import build
from tests.helpers.quantized import product_bits

pytestmark = pytest.mark.slow

ROOM = Path(__file__).parent
# Compiled with -O1, which takes half as long: what differs from the kernels without these flags are lines of the sources.
# Without AVX-512, where most of them differ, they are compiled as users have them.
NO_AMX = "-O1 -mno-amx-tile -mno-amx-bf16 -mno-amx-int8"
# what such a processor lacks: the compiler's flags, which of the tests of kernels run with them
LESSER = {
    "AMX": (NO_AMX, ("test_kernels.py", "test_attention.py")),
    # Nothing in the sources asks for both of the last two, so one library without both of them has every line.
    "AMX, AVX512_BF16 and AVX512_VNNI": (f"{NO_AMX} -mno-avx512bf16 -mno-avx512vnni", ("test_kernels.py",)),
    "AVX-512": (
        "-march=haswell",
        ("test_kernels.py", "test_attention.py", "test_adapter_bits.py"),
    ),
}


@cache
def instructions(flags: str) -> frozenset[str]:
    """Those that the sources ask for (`#if defined(__AVX2__)`) and that the compiler has with these flags."""
    sources = [*build.SOURCES.glob("*.cpp"), *build.SOURCES.glob("*.h")]
    asked = {name for file in sources for name in re.findall(r"__[A-Z0-9]+(?:_[A-Z0-9]+)*__", file.read_text())}
    command = [*build.compiler(), *build.compile_flags(), *flags.split(), "-dM", "-E", "-x", "c++", os.devnull]
    defined = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return frozenset(asked & set(re.findall(r"#define (\w+)", defined)))


@pytest.fixture(scope="module")
def environment() -> Callable[[str], dict[str, str]]:
    """For programs on a processor that lacks this. Each library is compiled once, and kept where this processor's is."""

    def make(lacks: str) -> dict[str, str]:
        flags = LESSER[lacks][0]
        try:
            if instructions(flags) == instructions(""):
                pytest.skip(f"needs a processor that has {lacks.replace(' and ', ' or ')}; without it, nothing differs")
        except KernelsUnavailableError as error:
            pytest.skip(str(error))
        return {**os.environ, "NANOINFER_CXXFLAGS": flags}

    return make


PROGRAM = """
import json, sys
from pathlib import Path
import pytest
from tests.helpers.quantized import product_bits
result, *files = sys.argv[1:]
Path(result).write_text(json.dumps(product_bits()))
sys.exit(pytest.main(["-p", "no:cacheprovider", *files]) if files else 0)
"""


Done = tuple[str, subprocess.CompletedProcess[str], Path]


@pytest.fixture(scope="module", params=LESSER)
def done(
    request: pytest.FixtureRequest,
    environment: Callable[[str], dict[str, str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Done:
    """What such a processor lacks, and a process that has written its products there and has run its tests of kernels."""
    lacks, result = request.param, tmp_path_factory.mktemp("lesser") / "products.json"
    files = [str(ROOM / file) for file in LESSER[lacks][1]]
    command = [sys.executable, "-c", PROGRAM, str(result), *files]
    folder, env = ROOM.parent.parent, environment(lacks)
    process = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False)
    return lacks, process, result


def test_the_tests_of_kernels_hold(done: Done) -> None:
    lacks, process, _ = done
    assert LESSER[lacks][1], "it has tests"
    assert process.returncode == 0, process.stdout[-6000:] + process.stderr[-2000:]
    assert "....." in process.stdout, "not all are skipped"


def test_products_in_8_and_4_bits_are_the_same_numbers(
    done: Done,
) -> None:
    _, process, result = done
    assert result.exists(), process.stderr[-3000:]
    found, wanted = json.loads(result.read_text()), product_bits()
    assert found
    assert found == {name: wanted[name] for name in found}
