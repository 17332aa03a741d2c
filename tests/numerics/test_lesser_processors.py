"""The kernels compiled without some of this CPU's instructions: their tests hold, and 8 and 4 bits give the same numbers.

Where the sources are compiled to the same with these flags as without, there is nothing that the quick tests does not test.
"""

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.model.kernels import build
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
    "AVX-512": ("-march=haswell", ("test_kernels.py", "test_attention.py", "test_adapter_bits.py", "test_experts.py")),
}


@cache
def instructions(flags: str) -> frozenset[str]:
    """Those that the sources ask for (`#if defined(__AVX2__)`) and that the compiler has with these flags."""
    sources = [*build.SOURCES.glob("*.cpp"), *build.SOURCES.glob("*.h")]
    asked = {name for file in sources for name in re.findall(r"__[A-Z0-9]+(?:_[A-Z0-9]+)*__", file.read_text())}
    command = [*build.compiler(), *build.compile_flags(), *flags.split(), "-dM", "-E", "-x", "c++", os.devnull]
    defined = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return frozenset(asked & set(re.findall(r"#define (\w+)", defined)))


PROGRAM = """
import json, sys
from pathlib import Path
import pytest
from tests.helpers.quantized import product_bits
result, *files = sys.argv[1:]
Path(result).write_text(json.dumps(product_bits()))
sys.exit(pytest.main(["-p", "no:cacheprovider", *files]) if files else 0)
"""


@pytest.mark.parametrize("lacks", LESSER)
def test_the_tests_of_kernels_hold_and_products_in_8_and_4_bits_are_the_same_numbers(
    lacks: str, tmp_path: Path
) -> None:
    flags, files = LESSER[lacks]
    try:
        if instructions(flags) == instructions(""):
            pytest.skip(f"needs a processor that has {lacks.replace(' and ', ' or ')}; without it, nothing differs")
    except KernelsUnavailableError as error:
        pytest.skip(str(error))
    result, env = tmp_path / "products.json", {**os.environ, "NANOINFER_CXXFLAGS": flags}
    command = [sys.executable, "-c", PROGRAM, str(result), *(str(ROOM / file) for file in files)]
    process = subprocess.run(command, env=env, cwd=ROOM.parent.parent, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout[-6000:] + process.stderr[-2000:]
    assert "....." in process.stdout, "not all are skipped"
    found, wanted = json.loads(result.read_text()), product_bits()
    assert found
    assert found == {name: wanted[name] for name in found}
