"""The processes of a split model: how they start, from any program; how they end, in any way; and that none is left."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.errors import EngineClosedError, RankError, StepFailedError
from nanoinfer.parallel.members import StartedRanks
from nanoinfer.parallel.messages import Message
from nanoinfer.parallel.ranks import Ranks

SECONDS = 300.0  # the longest that anything here may take, on a machine with much else to do
PROMPT = "Once upon a time"
PARAMS = SamplingParams(max_new_tokens=12, temperature=0)
SEEDED = SamplingParams(max_new_tokens=12, temperature=1, seed=5)


@pytest.fixture
def tokens(story: LLM) -> list[list[int]]:
    """What one process makes of PROMPT."""
    return [out.token_ids for out in story.generate([PROMPT] * 2, [PARAMS, SEEDED], use_tqdm=False)]


@pytest.fixture
def split() -> Iterator[LLM]:
    llm = LLM("story", tensor_parallel_size=2, max_running_requests=2)
    pids = pids_of(llm)
    yield llm
    llm.shutdown()
    assert soon(lambda: not any(map(lives, pids)))


def ranks_of(llm: LLM) -> Ranks:
    return llm.engine.model_runner._ranks  # type: ignore[attr-defined, no-any-return]


def pids_of(llm: LLM) -> list[int]:
    members = ranks_of(llm).members
    assert isinstance(members, StartedRanks)
    return members.pids


def lives(pid: int) -> bool:
    """Whether a process computes or waits: what has ended, and nobody has asked for how, does not count."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def soon(is_true: Callable[[], bool]) -> bool:
    """True as soon as `is_true`; False if it never becomes so."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if is_true():
            return True
        time.sleep(0.02)
    return False


# --- how they start --------------------------------------------------------------------------------------------------


def test_tokens_are_those_of_one_process_and_nobody_listens_but_on_loopback(
    split: LLM, tokens: list[list[int]]
) -> None:
    before = torch.get_num_threads()
    found = split.generate([PROMPT] * 2, [PARAMS, SEEDED], use_tqdm=False)
    assert [out.token_ids for out in found] == tokens
    assert ranks_of(split).threads == max(1, before // 2)
    assert torch.get_num_threads() == before, "they are shared out during passes only"
    addresses = [address for pid in (os.getpid(), *pids_of(split)) for address in listening(pid)]
    assert addresses
    assert set(addresses) == {"127.0.0.1"}


def listening(pid: int) -> list[str]:
    """The addresses at which a process waits for connections."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(os.readlink(entry).removeprefix("socket:[").removesuffix("]"))
        except FileNotFoundError:
            continue
    found = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                number = fields[1].partition(":")[0]
                mapped = number[-8:]
                is_mapped = len(number) == 8 or number[:24] == "0000000000000000FFFF0000"
                found.append(".".join(str(byte) for byte in reversed(bytes.fromhex(mapped))) if is_mapped else number)
    return found


def test_what_a_rank_says_before_it_ends_is_in_the_error(capfd: pytest.CaptureFixture[str]) -> None:
    ranks = Ranks.start(2)
    with (
        pytest.raises(
            RankError, match=r"rank 1 of 2 \(process \d+\) has ended with exit code 1: FileNotFound.*nowhere"
        ),
        ranks.doing(Message("load", {"model": "nowhere", "device": "cpu", "threads": 1})),
    ):
        ranks.communicator.meet()
    with pytest.raises(RankError, match="nowhere"), ranks.doing(Message("end")):
        pass
    assert "Traceback" in capfd.readouterr().err, "the rank's own, on standard error"


def test_a_rank_that_is_killed_while_it_loads_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are connected already, and rank 0 waits for it in the middle of something that all do together."""
    started: list[int] = []
    start = Ranks.start

    def start_and_kill(cls: type[Ranks], size: int) -> Ranks:
        ranks = start(size)
        assert isinstance(ranks.members, StartedRanks)
        started.extend(ranks.members.pids)
        monkeypatch.setattr(ranks.members, "ended", killing_once(ranks.members))
        return ranks

    monkeypatch.setattr(Ranks, "start", classmethod(start_and_kill))
    with pytest.raises(RankError, match=r"rank 1 of 2 \(process \d+\) was killed by SIGKILL"):
        LLM("story", tensor_parallel_size=2)
    assert started
    assert soon(lambda: not any(map(lives, started)))


def killing_once(members: StartedRanks) -> Callable[[], list[str]]:
    """`members.ended`, which finds nobody the first time, and kills all after it has looked."""
    ended, times = members.ended, count()

    def ended_and_kill() -> list[str]:
        if next(times):
            return ended()
        for pid in members.pids:
            os.kill(pid, signal.SIGKILL)
        return []

    return ended_and_kill


def test_a_rank_that_is_killed_while_it_starts_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    make = StartedRanks.__init__

    def make_and_kill(members: StartedRanks, *arguments: object) -> None:
        make(members, *arguments)  # type: ignore[arg-type]
        started.extend(members.pids)
        os.kill(started[-1], signal.SIGKILL)

    monkeypatch.setattr(StartedRanks, "__init__", make_and_kill)
    with pytest.raises(RankError, match=r"ended while it started: rank 1 of 2 \(process \d+\) was killed by SIGKILL"):
        LLM("story", tensor_parallel_size=2)
    assert started
    assert soon(lambda: not any(map(lives, started)))


# --- how they end ----------------------------------------------------------------------------------------------------


def test_a_rank_that_is_killed_between_passes_ends_the_engine(split: LLM) -> None:
    assert split.generate(PROMPT, PARAMS)
    os.kill(pids_of(split)[0], signal.SIGKILL)
    with pytest.raises((RankError, StepFailedError), match=r"rank 1 of 2 \(process \d+\) was killed by SIGKILL"):
        split.generate(PROMPT, PARAMS)
    with pytest.raises(EngineClosedError, match=r"takes no more requests: .*SIGKILL"):
        split.generate(PROMPT, PARAMS)
    split.engine.check_integrity()


def test_a_rank_that_is_killed_in_the_middle_of_a_pass_ends_all_requests(split: LLM) -> None:
    """It is stopped first, so that the pass of rank 0 waits for it."""
    errors: list[BaseException] = []
    (pid,) = pids_of(split)

    def call() -> None:
        try:
            split.generate(PROMPT, SamplingParams(max_new_tokens=200, temperature=0, ignore_eos=True))
        except BaseException as error:
            errors.append(error)

    assert split.generate(PROMPT, PARAMS)
    os.kill(pid, signal.SIGSTOP)
    threads = [threading.Thread(target=call) for _ in range(4)]  # more than run at the same time
    for thread in threads:
        thread.start()
    assert soon(lambda: split.engine.turns.is_computing)
    os.kill(pid, signal.SIGKILL)
    for thread in threads:
        thread.join(SECONDS)
    assert len(errors) == len(threads)
    assert all("rank 1 of 2" in str(error) and "SIGKILL" in str(error) for error in errors), errors
    assert not split.engine.has_unfinished()
    split.engine.check_integrity()


def test_no_thread_of_gloo_is_left_that_could_ask_for_python_while_it_ends() -> None:
    def threads() -> set[str]:
        return {path.parent.name for path in Path("/proc/self/task").glob("*/comm") if "gloo" in path.read_text()}

    gc.collect()
    before = threads()
    llm = LLM("story", tensor_parallel_size=2, max_running_requests=2)
    started = threads() - before
    assert started
    ranks_of(llm).close()
    assert not started & threads()


def test_ranks_end_with_the_last_reference_and_not_with_a_forked_process(tokens: list[list[int]]) -> None:
    llm = LLM("story", tensor_parallel_size=2)
    pids, ranks = pids_of(llm), ranks_of(llm)
    child = os.fork()
    if child == 0:  # no output, no cleaning up: only what is tested
        try:
            with ranks.doing(Message("pass")):
                os._exit(1)
        except RankError as error:
            ranks.close()
            ranks.members.end(patiently=False)
            os._exit(0 if "forked" in str(error) else 2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    del ranks
    assert llm.generate(PROMPT, PARAMS)[0].token_ids == tokens[0]
    assert all(map(lives, pids))
    del llm
    gc.collect()
    assert soon(lambda: not any(map(lives, pids)))


SCRIPT = """
import threading
from nanoinfer import LLM, SamplingParams  # no main guard, and nothing that could be imported: it comes from standard input
llm = LLM("story", tensor_parallel_size=2)
params = SamplingParams(max_new_tokens=12, temperature=0)
print("ranks", *llm.engine.model_runner._ranks.members.pids, flush=True)
try:
    for piece in llm.stream("The", SamplingParams(max_new_tokens=400, temperature=0, ignore_eos=True)):
        print("piece", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
print("tokens", *llm.generate("Once upon a time", params)[0].token_ids, flush=True)
threading.Event().wait()
"""


def test_a_script_from_standard_input_survives_ctrl_c_and_leaves_no_process(tokens: list[list[int]]) -> None:
    """The signal goes to the whole group of processes, as the terminal sends it. In the end, the script is killed."""
    script = subprocess.Popen(
        [sys.executable, "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert script.stdin is not None
        assert script.stdout is not None
        script.stdin.write(SCRIPT)
        script.stdin.close()
        timer = threading.Timer(SECONDS, script.kill)
        timer.start()
        pids = [int(pid) for pid in script.stdout.readline().split()[1:]]
        assert len(pids) == 1
        assert script.stdout.readline() == "piece\n"
        os.killpg(script.pid, signal.SIGINT)
        while (line := script.stdout.readline()) == "piece\n":
            pass
        assert line == "interrupted\n"
        assert script.stdout.readline().split() == ["tokens", *map(str, tokens[0])]
        assert all(map(lives, pids))
        script.kill()
        assert soon(lambda: not any(map(lives, pids)))
    finally:
        timer.cancel()
        script.kill()
        script.wait()
        script.stdout.close()


# --- torchrun --------------------------------------------------------------------------------------------------------


def torchrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*command, "-m", "nanoinfer", *arguments], capture_output=True, text=True, timeout=SECONDS, check=False
    )


def test_torchrun_gives_the_command_its_ranks_and_all_end_well(tokens: list[list[int]], story: LLM) -> None:
    done = torchrun("generate", PROMPT, "--temperature", "0", "--max-new-tokens", "12")
    assert done.returncode == 0, done.stderr
    assert story.tokenizer is not None
    assert done.stdout == PROMPT + story.tokenizer.decode(tokens[0]) + "\n", "once, by rank 0"


def test_another_number_of_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="tensor_parallel_size=2: must be torchrun's WORLD_SIZE=3"):
        LLM("story", tensor_parallel_size=2)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="RANK=1: only rank 0 of torchrun has the engine"):
        LLM("story", tensor_parallel_size=2)
