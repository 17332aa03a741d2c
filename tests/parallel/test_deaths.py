"""Programs with a split model that are interrupted, as a terminal does it, and killed.

Ranks that are killed: the soak's kind `ranks`. Ranks that fail, without processes: test_ranks_together.py.
"""

import os
import signal
import subprocess
from contextlib import suppress

import pytest

from nanoinfer import LLM
from tests.helpers.rank_processes import PARAMS, PROMPT, lives, python, ranks_below, until_ended

pytestmark = pytest.mark.soak

SCRIPT = """
import threading
from nanoinfer import LLM, SamplingParams  # no main guard, and nothing that could be imported: it comes from standard input
llm = LLM("story", tensor_parallel_size=2)
params = SamplingParams(max_new_tokens=12, temperature=0)
print("ranks", *llm.engine.model_runner._ranks.workers.pids, flush=True)
try:
    for piece in llm.stream("The", SamplingParams(max_new_tokens=400, temperature=0, ignore_eos=True)):
        print("piece", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
print("tokens", *llm.generate("Once upon a time", params)[0].token_ids, flush=True)
threading.Event().wait()
"""


def test_a_script_from_standard_input_survives_ctrl_c_and_leaves_no_process(story: LLM) -> None:
    """The signal goes to the whole group of processes. In the end, the script is killed."""
    with python("-", stdin=subprocess.PIPE, stderr=None) as script:
        script.stdin.write(SCRIPT)
        script.stdin.close()
        pids = [int(pid) for pid in script.stdout.readline().split()[1:]]
        assert len(pids) == 1
        assert script.stdout.readline() == "piece\n"
        os.killpg(script.pid, signal.SIGINT)
        while (line := script.stdout.readline()) == "piece\n":
            pass
        assert line == "interrupted\n"
        assert script.stdout.readline().split() == ["tokens", *map(str, story.generate(PROMPT, PARAMS)[0].token_ids)]
        assert all(map(lives, pids))
        script.kill()
        until_ended(pids)


@pytest.mark.parametrize("seconds", [0.5, 2.0, 3.5, 5.0])
def test_ctrl_c_ends_a_command_and_all_of_its_ranks(seconds: float) -> None:
    """At whatever moment it comes: while ranks start, while they load, or in the middle of a text."""
    options = ["--tensor-parallel-size", "2", "--max-new-tokens", "200", *["Once upon a time"] * 40]
    with python("-m", "nanoinfer", "generate", *options) as program:
        with suppress(subprocess.TimeoutExpired):
            program.wait(seconds)
        pids = ranks_below(program.pid)
        os.killpg(program.pid, signal.SIGINT)
        said, _ = program.communicate()
        assert program.returncode in (130, -signal.SIGINT, 0), said  # 0: it was done
        until_ended(pids)
