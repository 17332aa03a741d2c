"""The processes of a split model: how they start, from any program; how they end, and that none is left; and how much
memory they need while they load: their part, and never the whole checkpoint."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.errors import RankError
from nanoinfer.model.parallel import ranks as ranks_module
from nanoinfer.model.parallel.messages import Message
from nanoinfer.model.parallel.ranks import Ranks, StartedRanks
from tests.helpers.checkpoints import save_checkpoint
from tests.helpers.rank_processes import PARAMS, PROMPT, pids_of, ranks_of, until_ended
from tests.helpers.waiting import HANG_S, until

pytestmark = pytest.mark.slow
SEEDED = SamplingParams(max_new_tokens=12, temperature=1, seed=5)


@pytest.fixture
def tokens(story: LLM) -> list[list[int]]:
    """What one process makes of PROMPT."""
    return [out.token_ids for out in story.generate([PROMPT] * 2, [PARAMS, SEEDED], use_tqdm=False)]


@pytest.fixture(scope="module")
def split() -> Iterator[LLM]:
    llm = LLM("story", tensor_parallel_size=2, max_running_requests=2)
    pids = pids_of(llm)
    yield llm
    llm.shutdown()
    until_ended(pids)


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
    found = psutil.Process(pid).net_connections("tcp")
    return [each.laddr.ip.removeprefix("::ffff:") for each in found if each.status == psutil.CONN_LISTEN]


def test_a_rank_that_fails_is_named_and_says_why_on_standard_error(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks_module, "SECONDS_TO_LOOK", HANG_S)
    ranks = Ranks.start(2)
    with (
        pytest.raises(RankError, match=r"rank 1 of 2 \(process \d+\) has ended with exit code 1"),
        ranks.doing(Message("load", {"model": "nowhere", "device": "cpu", "threads": 1})),
    ):
        ranks.communicator.barrier()
    with pytest.raises(RankError, match="exit code 1"), ranks.doing(Message("end")):
        pass
    said = capfd.readouterr().err
    assert "Traceback" in said
    assert "nowhere" in said


def test_a_rank_that_is_killed_while_it_starts_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    make = StartedRanks.__init__

    def make_and_kill(workers: StartedRanks, *arguments: object) -> None:
        make(workers, *arguments)  # type: ignore[arg-type]
        started.extend(workers.pids)
        os.kill(started[-1], signal.SIGKILL)

    monkeypatch.setattr(StartedRanks, "__init__", make_and_kill)
    with pytest.raises(RankError, match=r"ended while it started: rank 1 of 2 \(process \d+\) was killed by SIGKILL"):
        LLM("story", tensor_parallel_size=2)
    assert started
    until_ended(started)


def test_ranks_end_with_the_last_reference_and_leave_no_thread_of_gloo_that_could_ask_for_python() -> None:
    def threads() -> set[str]:
        found = set()
        for path in Path("/proc/self/task").glob("*/comm"):
            with suppress(FileNotFoundError, ProcessLookupError):  # one that has just ended
                if "gloo" in path.read_text():
                    found.add(path.parent.name)
        return found

    gc.collect()
    before = threads()
    llm = LLM("story", tensor_parallel_size=2, max_running_requests=2)
    pids, started = pids_of(llm), threads() - before
    assert started
    del llm
    gc.collect()
    until(lambda: not started & threads(), "the end of gloo's threads")
    until_ended(pids)


MIB = 2**20
LAYERS, HIDDEN, MLP, VOCAB = 12, 512, 2048, 8192
LARGE = {
    "hidden_size": HIDDEN,
    "intermediate_size": MLP,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": VOCAB,
}
SHARD = VOCAB * HIDDEN * 4  # bytes: the largest tensor, and the largest file
WHOLE = 4 * (LAYERS * (4 * HIDDEN**2 + 3 * HIDDEN * MLP) + 2 * VOCAB * HIDDEN)  # bytes of the checkpoint, float32
LOAD = """
import sys
from pathlib import Path
from nanoinfer import LLM
llm = LLM(sys.argv[1], tensor_parallel_size=2, max_total_tokens=64, quantization=sys.argv[2] or None)
for pid in ("self", *llm.engine.model_runner._ranks.workers.pids):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    print(*(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")))
"""


def most_memory(path: Path, quantization: str) -> list[int]:
    """The most bytes that each of two ranks had in memory at any moment until all was loaded, mapped files included."""
    command = [sys.executable, "-c", LOAD, str(path), quantization]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False, env=one_thread)
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of many files, each of which is open by itself."""
    path = save_checkpoint(tmp_path_factory.mktemp("large"), max_shard_size=f"{SHARD // MIB + 1}MB", **LARGE)
    assert len(list(path.glob("*.safetensors"))) > 10
    return path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """What the ranks of a tiny model have; quantizing it takes nothing to speak of."""
    return most_memory(save_checkpoint(tmp_path_factory.mktemp("tiny")), "")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux says how much memory a process had")
@pytest.mark.parametrize("quantization", ["", "int8"])
def test_no_rank_ever_has_more_than_its_part_and_one_tensor(quantization: str, large: Path, tiny: list[int]) -> None:
    """Beyond what a rank of a tiny model has."""
    if not tiny:
        pytest.skip("needs a kernel that says how much memory a process had at most (VmHWM)")
    for rank, (found, base) in enumerate(zip(most_memory(large, quantization), tiny, strict=True)):
        grown = found - base
        assert grown + 8 * MIB > WHOLE / 2, "the share is there"
        assert grown < WHOLE / 2 + SHARD + 12 * MIB, f"rank {rank}: {grown / MIB:.0f} of {WHOLE / MIB:.0f} MiB"
