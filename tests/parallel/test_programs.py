"""Programs with a split model: commands whose processes torchrun has started, and programs that are interrupted or killed.

Ranks that are killed: the soak's kind `ranks`. Ranks that fail, without processes: test_ranks_together.py.
"""

import json
import os
import signal
import subprocess
import urllib.request
from contextlib import suppress
from typing import Any

import psutil
import pytest
import torch.distributed as dist

from nanoinfer import LLM
from nanoinfer.cli.main import main
from nanoinfer.model.parallel import communicator
from tests.helpers.rank_processes import PARAMS, PROMPT, lives, python, ranks_below, until_ended

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "nanoinfer"]


@pytest.fixture
def under_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["bench"], "bench run: must not be started by torchrun"),
        (["demo"], "demo: must not be started by torchrun"),
        (["generate", "--tensor-parallel-size", "3", "x"], "--tensor-parallel-size 3: must be torchrun's WORLD_SIZE=2"),
    ],
)
def test_what_torchrun_cannot_start_is_refused(
    arguments: list[str], sentence: str, under_torchrun: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert f"nanoinfer: error: {sentence}" in capsys.readouterr().err


class FakeGloo:
    """As much of ProcessGroupGloo as connecting needs; it remembers where it was to listen."""

    where: dict[str, Any]

    class _Options:
        pass

    def __init__(self, *arguments: Any):
        pass

    @classmethod
    def create_device(cls, **where: Any) -> str:
        cls.where = where
        return "device"


@pytest.mark.parametrize(
    ("told", "where"), [("", {"hostname": "127.0.0.1"}), ("eth7", {"interface": "eth7"})], ids=["untold", "told"]
)
def test_gloo_stays_on_the_loopback_interface_unless_told(
    told: str, where: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", told)
    monkeypatch.setattr(dist, "ProcessGroupGloo", FakeGloo)
    communicator._gloo(None, 0, 2)  # type: ignore[arg-type]
    assert FakeGloo.where == where


@pytest.fixture
def text(story: LLM) -> str:
    """What one process makes of PROMPT."""
    return story.generate(PROMPT, PARAMS)[0].text


@pytest.mark.slow
def test_generate_gets_its_ranks_and_all_end_well(text: str) -> None:
    command = [*TORCHRUN, "generate", PROMPT, "--temperature", "0", "--max-new-tokens", "12"]
    with python(*command, stderr=subprocess.PIPE) as program:
        said, errors = program.communicate()
    assert program.returncode == 0, errors
    assert said == PROMPT + text + "\n", "once, by rank 0"


@pytest.mark.slow
def test_serve_answers_and_ctrl_c_ends_all_of_its_processes(text: str) -> None:
    """The signal goes to the whole group, as a terminal sends it."""
    with python(*TORCHRUN, "serve", "story", "--port", "0") as server:
        said = []
        while "http://" not in (line := server.stdout.readline()):
            said.append(line)
            assert line, "".join(said)
        address = line[line.index("http://") :].split()[0].rstrip(".,/")
        body = json.dumps({"model": "story", "prompt": PROMPT, "temperature": 0, "max_tokens": 12}).encode()
        asked = urllib.request.Request(f"{address}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked) as answer:
            assert json.load(answer)["choices"][0]["text"] == text
        ranks = [each.pid for each in psutil.Process(server.pid).children(recursive=True)]  # with sessions of their own
        assert len(ranks) >= 2
        os.killpg(server.pid, signal.SIGINT)
        server.communicate()
        until_ended([server.pid, *ranks])


# --- programs that are interrupted, as a terminal does it, and killed --------------------------------------------------

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


@pytest.mark.soak
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


@pytest.mark.soak
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
