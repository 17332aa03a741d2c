"""What earns no marks: patches, forged messages and outputs."""

from pathlib import Path

import pytest

from tests.notebooks.grading import IDS, graded, outcomes
from tests.sample_series import code, series

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("checks_folder")]

CHEATS = {
    "redefines check and expect": "def check(*args): print('right')\nexpect = expect_equal = check",
    "patches the checker's helpers": """
import notebooks.course.expectations as e, notebooks.course.exercises as x, notebooks.course.checking as c
import notebooks.course.checks.nb90 as nb
e.expect = nb.expect = nb.expect_equal = lambda *args, **kwargs: None
c.run_check = lambda *args: "right"
e.difference.__code__ = (lambda *args: None).__code__
nb.sorted = None
for exercise in x._exercises.values():
    exercise.checker.__code__ = (lambda given: "right").__code__
x._exercises.clear()
import sys
sys.modules["notebooks.course"] = sys
""",
    "patches what is compared": """
import builtins, numpy, torch
builtins.zip = lambda *args, **kwargs: []
builtins.isinstance = lambda *args: True
numpy.isclose = torch.equal = lambda *args: True
from nanoinfer.cache.memory_pool import ReqToTokenPool
ReqToTokenPool.alloc = lambda self, n: torch.tensor([0, 1])
""",
    "patches what puts things back": """
import builtins, notebooks.tools.intact
notebooks.tools.intact.Intact.restore = notebooks.tools.intact._set = lambda *args: None
builtins.setattr = builtins.delattr = lambda *args: None
builtins.vars = lambda *args: {}
import notebooks.course.checks.nb90 as nb
nb.expect = nb.expect_equal = lambda *args, **kwargs: None
""",
    "forges the marks": """
import json, os
for fd in range(3, 64):
    for id in ("90.1", "90.2", "90.3"):
        for step in range(12):
            try:
                os.write(fd, (json.dumps(
                    {"event": "end", "step": step, "outcome": "passed", "text": "", "secret": ""}) + "\\n").encode())
            except OSError:
                pass
""",
}


def test_cheating_and_outputs_earn_nothing(checks_folder: Path, tmp_path: Path) -> None:
    """All checks follow each of the cheats, and one that passed only once would stay passed."""
    wrong = {
        "90.1": "def lowest(free, n):\n    return [2, 3]",
        "90.2": "def twice(number):\n    return 0",
        "90.3": "def rows(pool, n):\n    return pool.alloc(n).tolist()[::-1]",
    }
    content = series(wrong)
    for cell, title in ((3, "90.1 The lowest first"), (5, "90.2 Twice as much"), (7, "90.3 Rows of a pool")):
        content["cells"][cell]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": [f"✓ {title}\n"]}]
    for cheat in CHEATS.values():
        content["cells"] += [code(cheat), *(code(f'check("{id}", globals())', f"check-{id}") for id in IDS)]
    result = graded(checks_folder, tmp_path, content)
    assert outcomes(result) == ["wrong"] * 3, result
    assert result.raised == {}, "each cheat has done what it can"


def test_a_right_answer_counts_beside_any_cheat(checks_folder: Path, tmp_path: Path) -> None:
    content = series()
    content["cells"].insert(2, code("\n".join(CHEATS.values())))
    assert outcomes(graded(checks_folder, tmp_path, content)) == ["passed"] * 3
