"""Processes that end while requests are in flight: each ends with the return code that Python gives for its way to end."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.tiny_llm import make_llm_model
from tests.soak.episodes.exits import run_episode

REPEATS = 5  # what threads are doing differs, and so does the moment


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's directory."""
    return make_llm_model(tmp_path_factory.mktemp("tiny")).path


@pytest.mark.parametrize(
    "scenes",
    [
        ["end of main/none", "SIGTERM handled/none", "exception/none"],
        ["end of main/loop closed first", "sys.exit/in a daemon thread", "KeyboardInterrupt/run"],
    ],
    ids=["threads that call an LLM", "and an AsyncEngine"],
)
def test_a_process_ends_as_it_would_without_requests_in_flight(tiny: Path, scenes: list[str]) -> None:
    run_episode(tiny, 3 * 100, len(scenes) * REPEATS, "--scenes", *scenes)


LOAD = """
import atexit, queue, sys, threading
from nanoinfer import LLM, SamplingParams
llm, params = LLM(sys.argv[1], max_total_tokens=64, max_context_len=64), SamplingParams(max_new_tokens=20)
"""
CALL_ON = """
def call():
    while True: llm.generate([1, 2], params, use_tqdm=False)
threading.Thread(target=call, daemon=True).start()
time.sleep(0.05)
"""
SCRIPTS = {
    "a stream that is not read to its end": LOAD + "stream = llm.stream([1, 2], params)\nnext(stream)",
    "an exception in the loop over a stream": LOAD + "for piece in llm.stream([1, 2], params): raise SystemExit(0)",
    "a stream in a cycle": LOAD + "cycle = [llm.stream([1, 2], params)]\ncycle.append(cycle)\nnext(cycle[0])",
    "an exit function that waits for a daemon thread": """
import atexit, queue, sys, threading
tasks = queue.Queue()
def finish():
    tasks.put([1, 2])
    worker.join()
atexit.register(finish)
"""
    + LOAD
    + """
worker = threading.Thread(target=lambda: llm.generate(tasks.get(), SamplingParams(max_new_tokens=2)), daemon=True)
worker.start()
""",
    # `sleep` is called by Python itself, with no line of Python around it: as when a busy machine keeps it from going on
    "an exit that takes longer than any wait at the gate": "import atexit, time\natexit.register(time.sleep, 2.5)"
    + LOAD
    + CALL_ON,
    "an exit function that sleeps": "import atexit, time\natexit.register(lambda: time.sleep(2.5))" + LOAD + CALL_ON,
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_ends_cleanly_with(script: str, tiny: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", SCRIPTS[script], str(tiny)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
