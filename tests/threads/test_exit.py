"""Processes that end or fork while requests are in flight. They end with Python's return code, and no last words.

Any moment, any number of threads: the soak's `exits`.
"""

import json
import os
import subprocess
import sys

import pytest

from nanoinfer import EngineClosedError
from tests.helpers.async_engines import in_a_pass, llm_around, with_barrier
from tests.helpers.engines import assert_all_free, greedy
from tests.helpers.tiny_llm import make_llm_model
from tests.helpers.waiting import HANG_S

# A fork ends as a process does that is started anew, which takes seconds more.
FORKS = """
import asyncio, atexit, gc, json, os, signal, sys, threading
import transformers.tokenization_utils_tokenizers  # as a first LLM does
from nanoinfer import LLM, AsyncEngine, EngineClosedError, SamplingParams

folder, limit, begin, *scripts = sys.argv[1:]
codes = []
gc.collect()
gc.freeze()  # what is imported: each fork would look through it at its end
for i, script in enumerate(scripts):
    child = os.fork()
    if child == 0:
        signal.alarm(int(limit))
        os.dup2(os.open(f"{folder}/{i}", os.O_WRONLY | os.O_CREAT), 2)
        exec(begin + script, globals())
        break
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    print(json.dumps(codes))
"""
BEGIN = """
llm = LLM(folder, max_total_tokens=256, max_running_requests=4, max_context_len=128)
params = SamplingParams(max_new_tokens=100, temperature=0.0, ignore_eos=True)
begun = threading.Event()

def call_on_and_on():
    try:
        while True:
            for piece in llm.stream([1, 2, 3], params):
                begun.set()
    except EngineClosedError:
        pass  # Python is exiting

def daemon(function):
    threading.Thread(target=function, daemon=True).start()

"""
SCRIPTS: dict[str, tuple[int, str]] = {
    "an LLM that was never used": (0, ""),
    "an idle LLM": (0, "llm.generate([1, 2], params)"),
    "calls of daemon threads": (0, "daemon(call_on_and_on); daemon(call_on_and_on); begun.wait()"),
    "sys.exit during a call": (3, "daemon(call_on_and_on); begun.wait(); sys.exit(3)"),
    "an exception during a call": (1, "daemon(call_on_and_on); begun.wait(); raise ValueError('on purpose')"),
    "Ctrl-C in a call": (
        -2,
        "daemon(lambda: (begun.wait(), signal.raise_signal(signal.SIGINT)))\ncall_on_and_on()",
    ),
    "a stream that is half read": (0, "stream = llm.stream([1, 2], params)\nnext(stream)"),
    "an event loop that was run": (
        0,
        "engine = AsyncEngine(llm)\n"
        "async def main():\n"
        "    global stream\n"
        "    stream = await engine.add([1, 2], params)\n"
        "    await anext(stream)\n"
        "asyncio.run(main())",
    ),
    "an exit function that calls": (
        0,
        "def late():\n"
        "    try:\n"
        "        llm.generate([1, 2], params)\n"
        "    except EngineClosedError:\n"
        "        pass\n"
        "atexit.register(late)\nllm.generate([1, 2], params)",
    ),
}


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Each script's exit status, and what it wrote to standard error."""
    make_llm_model(folder := tmp_path_factory.mktemp("model"))
    arguments = [str(folder), str(int(HANG_S)), BEGIN, *(script for _, script in SCRIPTS.values())]
    command = [sys.executable, "-X", "faulthandler", "-c", FORKS, *arguments]
    codes = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return {name: (codes[i], (folder / str(i)).read_text()) for i, name in enumerate(SCRIPTS)}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_process_ends_cleanly(ends: dict[str, tuple[int, str]], name: str) -> None:
    wanted, _ = SCRIPTS[name]
    code, said = ends[name]
    assert code == wanted, said
    last = {1: "ValueError: on purpose\n", -2: "KeyboardInterrupt\n"}.get(code, "")
    assert said.endswith(last), said
    assert last or not said


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_the_engine_of_a_forked_process_refuses() -> None:
    engine, barrier = with_barrier(open_at_once=False)
    llm = llm_around(engine)
    call = in_a_pass(llm, barrier, [5], greedy(3))
    child = os.fork()
    if child == 0:
        refused = 0
        for use in (lambda: llm.generate([70], greedy(2)), engine.step, engine.stats, lambda: engine.add_request([7])):
            try:
                use()
            except EngineClosedError:
                refused += 1
        os._exit(0 if refused == 4 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    barrier.open()
    assert call.result()[0].token_ids == [6, 7, 8]
    assert_all_free(engine)
