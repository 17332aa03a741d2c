"""Processes that end or fork while requests are in flight. They end with Python's return code, and no last words.

Any moment, any number of threads: the soak's `exits`.
"""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.helpers.async_engines import gated, in_a_pass, llm_around
from tests.helpers.engines import assert_all_free, greedy
from tests.helpers.tiny_llm import make_llm_model
from tests.helpers.waiting import HANG_S, Worker, until
from tests.threads.exit_scenes import CODES, SCENES

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int | None, str]]:
    """By scene: the return code, and what was printed."""
    folder = tmp_path_factory.mktemp("exit")
    make_llm_model(folder)
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.threads.exit_scenes", str(folder)]
    done = subprocess.run([*command, str(folder / "ends.json")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "ends.json").read_text())


@pytest.mark.slow
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


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_process_forked_while_another_thread_makes_a_pass_can_use_the_engine() -> None:
    engine, gate = gated(open_at_once=False)
    llm = llm_around(engine)
    call = in_a_pass(llm, gate, [5], greedy(3))

    def let_pass() -> None:
        until(lambda: engine.turns.waiting, "a fork that waits for the pass to end")
        gate.open()

    opener = Worker(let_pass)
    child = os.fork()
    if child == 0:
        signal.alarm(int(HANG_S))
        code = 1
        try:
            code = 0 if llm.generate([70], greedy(2))[0].token_ids == [71, 72] else 2
            engine.check_integrity()
            code = code if len(engine.loop.request_ids()) + engine.stats().running == 0 else 3
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    opener.result()
    assert call.result()[0].token_ids == [6, 7, 8]
    assert_all_free(engine)
