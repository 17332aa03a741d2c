"""Workers: the protocol, what becomes of engines that fail, hang or die, and how `--compare` is read."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from nanoinfer.bench.engines import EngineSpec, environment, parse_all, parse_engine
from nanoinfer.bench.peers import worker as worker_module
from nanoinfer.bench.processes import EngineFailure, Worker
from nanoinfer.bench.servers import parse_server
from tests.helpers.fake_peer import Peer
from tests.helpers.waiting import HANG_S, until

FAKE = Path(__file__).parents[2] / "helpers" / "fake_peer.py"


@contextmanager
def fake(**options: Any) -> Iterator[Worker]:
    with EngineSpec("fake", FAKE, options=options).start("no-model", "float32", 1, HANG_S) as worker:
        yield worker


def job(*requests: tuple[list[int], int, float]) -> dict[str, Any]:
    return {"requests": [{"prompt": p, "new_tokens": n, "arrival": at} for p, n, at in requests]}


def test_a_worker_tells_what_it_is_and_serves_job_after_job() -> None:
    with fake() as worker:
        assert worker.about["versions"]["fake"] == "1.0"
        assert worker.about["prefix_cache"] is True
        answer = worker.ask(job(([5, 6], 3, 0.0), ([1], 1, 0.0)))
        assert answer["tokens"] == [[12, 13, 14], [2]]
        assert [len(times) for times in answer["times"]] == [3, 1]
        assert all(0 <= time <= answer["wall_s"] for times in answer["times"] for time in times)
        assert answer["peak_memory_mb"] > 1
        assert answer["cached_tokens"] == [None, None]
        assert worker.ask(job(([7], 1, 0.0)))["tokens"] == [[8]]


def test_requests_are_not_served_before_they_arrive() -> None:
    requests = job(([1], 1, 0.0), ([2], 1, 0.02))["requests"]
    tokens, times, wall = worker_module.serve(Peer("no-model", "float32", 1), requests)
    assert tokens == [[2], [3]]
    assert wall >= times[1][0] >= 0.02


def test_neither_what_an_engine_prints_nor_what_primes_its_cache_is_an_answer() -> None:
    with fake(noise=True) as worker:
        prime = job(([9, 9], 5, 0.0))["requests"]
        assert worker.ask({**job(([1], 2, 0.0)), "prime": prime, "shared": True})["tokens"] == [[2, 3]]


def test_a_failed_run_is_reported_and_the_next_one_served() -> None:
    with fake(when=3, trouble="fail") as worker:
        with pytest.raises(EngineFailure, match="MemoryError: no room"):
            worker.ask(job(([1, 2, 3], 1, 0.0)))
        assert worker.alive
        assert worker.ask(job(([1], 1, 0.0)))["tokens"] == [[2]]


def test_fewer_tokens_than_asked_for_are_a_failure() -> None:
    with fake(when=2, trouble="short") as worker, pytest.raises(EngineFailure, match="request 1"):
        worker.ask(job(([1], 3, 0.0), ([1, 2], 3, 0.0)))


def test_with_some_at_a_time_the_next_one_begins_when_one_has_ended() -> None:
    added: list[tuple[int, int]] = []

    class Counting(Peer):  # type: ignore[misc]
        def add(self, index: int, *args: Any) -> None:
            super().add(index, *args)
            added.append((index, len(self.live)))

    requests = job(*(([index], 2 + index, 0.0) for index in range(5)))["requests"]
    tokens, *_ = worker_module.serve(Counting("no-model", "float32", 1), requests, together=2)
    assert [len(each) for each in tokens] == [2, 3, 4, 5, 6]
    assert [index for index, _ in added] == [0, 1, 2, 3, 4]
    assert max(open_now for _, open_now in added) == 2


def test_a_dead_worker_leaves_its_last_words() -> None:
    with fake(when=2, trouble="die") as worker:
        with pytest.raises(EngineFailure, match=r"exit code 7\nfirst line\nthe last words"):
            worker.ask(job(([1, 2], 1, 0.0)))
        assert not worker.alive
        with pytest.raises(EngineFailure):
            worker.ask(job(([1], 1, 0.0)))


def test_a_worker_that_hangs_is_ended() -> None:
    with fake(when=2, trouble="hang") as worker:
        worker.timeout = 0
        with pytest.raises(EngineFailure):
            worker.ask(job(([1, 2], 1, 0.0)))
        assert not worker.alive


def test_an_idle_worker_is_stopped_and_one_that_is_done_is_gone() -> None:
    with fake() as worker:
        worker.ask(job(([5], 1, 0.0)))
        until(lambda: psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED, "a worker that is stopped")
    assert not psutil.pid_exists(worker.pid)


def test_engines_are_read_from_the_command_line() -> None:
    plain, elsewhere = parse_engine("vllm"), parse_engine(f"vllm={sys.executable}")
    assert (plain.name, plain.python, plain.is_ours) == ("vllm", sys.executable, False)
    assert elsewhere.python == sys.executable
    ours = parse_engine("nanoinfer:attention_backend=torch_native,page_size=16,disable_radix_cache=True")
    assert ours.options == {"attention_backend": "torch_native", "page_size": 16, "disable_radix_cache": True}
    assert ours.is_ours
    assert ours.name == "nanoinfer:attention_backend=torch_native,page_size=16,disable_radix_cache=True"
    assert parse_engine(str(FAKE)).file == FAKE
    both = parse_engine(f"llamacpp:weights=int8,slots=4={sys.executable}")
    assert (both.name, both.python) == ("llamacpp:weights=int8,slots=4", sys.executable)
    assert both.options == {"weights": "int8", "slots": 4}
    assert not both.is_ours


def test_packages_of_this_environment_stay_out_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/ours")
    assert environment(sys.executable, 2, is_ours=False)["PYTHONPATH"] == "/ours"
    assert "PYTHONPATH" not in environment("/other/python", 2, is_ours=False)
    assert environment("/other/python", 2, is_ours=False)["OMP_NUM_THREADS"] == "2"
    root = str(Path(__file__).parents[3])
    assert environment(sys.executable, 1, is_ours=True)["PYTHONPATH"].split(os.pathsep) == [root, "/ours"]


@pytest.mark.parametrize(
    ("parse", "text", "wrong"),
    [
        (parse_engine, "tgi", "'tgi'"),
        (parse_engine, "vllm:max_num_seqs=4=/no/such/python", "'/no/such/python'"),
        (parse_engine, "vllm:max_num_seqs=4=", "option=value"),
        (parse_engine, "missing.py", r"'missing\.py'"),
        (parse_engine, "nanoinfer", "nanoinfer"),
        (parse_server, "llama-server", "llama-server"),
        (parse_server, "nanoinfer:int8", "nanoinfer:int8"),
    ],
)
def test_what_cannot_be_compared_is_named(parse: Any, text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        parse_all([text], parse)
