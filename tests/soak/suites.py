"""Episodes that run tests in a process of their own: those marked `soak`, examples drawn anew, and replicas on Ray."""

import importlib.util
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
RAY = "Ray is not installed: pip install -e '.[cluster]'"


def has_ray() -> bool:
    return importlib.util.find_spec("ray") is not None


def files_with_examples() -> list[str]:
    """The test files that use hypothesis."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    used = re.compile(r"^\s*(from|import) hypothesis\b", re.MULTILINE)
    return [str(path.relative_to(ROOT)) for path in files if used.search(path.read_text())]


def run_tests(seed: int) -> Counter[str]:
    """All tests marked `soak`."""
    return _pytest(seed, "-m", "soak")


def run_examples(seed: int) -> Counter[str]:
    """The quick tests that use hypothesis (it marks them so), with other examples than in the quick ring."""
    return _pytest(seed, "-m", "hypothesis and not slow and not soak", *files_with_examples())


def run_ray(seed: int) -> Counter[str]:
    """All tests of replicas on Ray, whatever their marks."""
    assert has_ray(), RAY
    return _pytest(seed, "-m", "", "tests/cluster/on_ray")


def _pytest(seed: int, *options: str) -> Counter[str]:
    """How many tests passed. AssertionError with all that was said when one did not."""
    drawn = ["--hypothesis-profile=soak", f"--hypothesis-seed={seed}"]
    command = [sys.executable, "-m", "pytest", *drawn, *options]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\nexit code {done.returncode}, seed {seed}"
    passed = re.search(r"(\d+) passed", done.stdout)
    return Counter({"tests_passed": int(passed[1]) if passed else 0})
