"""Processes that end while requests are in flight end as any process does: with Python's return code, and no last words."""

import json
import os
import subprocess
import sys

import pytest

from tests.helpers.tiny_llm import make_llm_model
from tests.threads.exit_scenes import CODES, SCENES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
]


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int | None, str]]:
    """By scene: the return code, and what was printed."""
    folder = tmp_path_factory.mktemp("exit")
    make_llm_model(folder)
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.threads.exit_scenes", str(folder)]
    done = subprocess.run([*command, str(folder / "ends.json")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "ends.json").read_text())


@pytest.mark.parametrize("scene", SCENES)
def test_a_process_ends_cleanly(ends: dict[str, tuple[int | None, str]], scene: str) -> None:
    code, said = ends[scene]
    assert code == CODES.get(scene, 0), said
    if scene.startswith("exception"):
        assert said.endswith("ValueError: on purpose\n")
    elif scene.startswith("KeyboardInterrupt"):
        assert said.endswith("KeyboardInterrupt\n")
    else:
        assert said == ""
