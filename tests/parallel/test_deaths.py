"""Ranks of a split model that are killed, and a program with ranks that is interrupted and killed.

test_ranks_together.py has ranks that fail, without processes.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.errors import EngineClosedError, RankError, StepFailedError
from nanoinfer.model.parallel.ranks import Ranks, StartedRanks
from tests.helpers.rank_processes import PARAMS, PROMPT, lives, pids_of, ranks_below, until_ended
from tests.helpers.waiting import HANG_S, Worker, until

pytestmark = pytest.mark.soak


@pytest.fixture
def split() -> Iterator[LLM]:
    llm = LLM("story", tensor_parallel_size=2, max_running_requests=2)
    pids = pids_of(llm)
    yield llm
    llm.shutdown()
    until_ended(pids)


def test_a_rank_that_is_killed_while_it_loads_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are connected already, and rank 0 waits for it in the middle of something that all do together."""
    started: list[int] = []
    start = Ranks.start

    def start_and_kill(cls: type[Ranks], size: int) -> Ranks:
        ranks = start(size)
        assert isinstance(ranks.workers, StartedRanks)
        started.extend(ranks.workers.pids)
        monkeypatch.setattr(ranks.workers, "ended", killing_once(ranks.workers))
        return ranks

    monkeypatch.setattr(Ranks, "start", classmethod(start_and_kill))
    with pytest.raises(RankError, match=r"rank 1 of 2 \(process \d+\) was killed by SIGKILL"):
        LLM("story", tensor_parallel_size=2)
    assert started
    until_ended(started)


def killing_once(workers: StartedRanks) -> Callable[[], list[str]]:
    """`workers.ended`, which finds nobody the first time, and kills all after it has looked."""
    ended, times = workers.ended, count()

    def ended_and_kill() -> list[str]:
        if next(times):
            return ended()
        for pid in workers.pids:
            os.kill(pid, signal.SIGKILL)
        return []

    return ended_and_kill


def test_a_rank_that_is_killed_between_passes_ends_the_engine(split: LLM) -> None:
    assert split.generate(PROMPT, PARAMS)
    os.kill(pids_of(split)[0], signal.SIGKILL)
    until(lambda: split.engine.is_closed, "news of it, although nobody asks for a pass")
    with pytest.raises(EngineClosedError, match=r"takes no more requests: .*SIGKILL"):
        split.generate(PROMPT, PARAMS)
    split.engine.check_integrity()


def test_a_rank_that_is_killed_in_the_middle_of_a_pass_ends_all_requests(split: LLM) -> None:
    """It is stopped first, so that the pass of rank 0 waits for it."""
    (pid,) = pids_of(split)
    long = SamplingParams(max_new_tokens=200, temperature=0, ignore_eos=True)

    assert split.generate(PROMPT, PARAMS)
    os.kill(pid, signal.SIGSTOP)
    calls = [Worker(split.generate, PROMPT, long) for _ in range(4)]  # more than run at the same time
    until(lambda: split.engine._is_changing)
    os.kill(pid, signal.SIGKILL)
    for call in calls:
        with pytest.raises((RankError, StepFailedError, EngineClosedError), match=r"rank 1 of 2 .*SIGKILL"):
            call.result()
    assert not split.engine.has_unfinished()
    split.engine.check_integrity()


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
    """The signal goes to the whole group of processes, as the terminal sends it. In the end, the script is killed."""
    script = subprocess.Popen(
        [sys.executable, "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        script.stdin.write(SCRIPT)
        script.stdin.close()
        timer = threading.Timer(HANG_S, script.kill)
        timer.start()
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
    finally:
        timer.cancel()
        script.kill()
        script.wait()
        script.stdout.close()


@pytest.mark.parametrize("seconds", [0.5, 2.0, 3.5, 5.0])
def test_ctrl_c_ends_a_command_and_all_of_its_ranks(seconds: float) -> None:
    """At whatever moment it comes: while ranks start, while they load, or in the middle of a text."""
    command = ["generate", "--tensor-parallel-size", "2", "--max-new-tokens", "200", *["Once upon a time"] * 40]
    program = subprocess.Popen(
        [sys.executable, "-m", "nanoinfer", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    timer = threading.Timer(HANG_S, program.kill)
    timer.start()
    try:
        with suppress(subprocess.TimeoutExpired):
            program.wait(seconds)
        pids = ranks_below(program.pid)
        os.killpg(program.pid, signal.SIGINT)
        _, said = program.communicate()
        assert program.returncode in (130, -signal.SIGINT, 0), said.decode()  # 0: it was done
        until_ended(pids)
    finally:
        timer.cancel()
        program.kill()
        program.wait()
