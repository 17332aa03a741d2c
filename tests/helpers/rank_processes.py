"""The processes of a split model, as tests look at them."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.parallel.ranks import Ranks, StartedRanks
from tests.helpers.waiting import HANG_S, until

WORKER = "nanoinfer.model.parallel.worker"
PROMPT = "Once upon a time"
PARAMS = SamplingParams(max_new_tokens=12, temperature=0)


@contextmanager
def python(*arguments: str, **options: Any) -> "Iterator[subprocess.Popen[str]]":
    """Python in a session of its own, which is killed at the end, or when it hangs. All that it says is in its `stdout`."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options}
    process = subprocess.Popen([sys.executable, *arguments], text=True, start_new_session=True, **pipes)
    timer = threading.Timer(HANG_S, os.killpg, (process.pid, signal.SIGKILL))
    timer.start()
    try:
        yield process
    finally:
        timer.cancel()
        process.kill()
        process.wait()
        process.stdout.close()


def ranks_of(llm: LLM) -> Ranks:
    return llm.engine.model_runner._ranks  # type: ignore[attr-defined, no-any-return]


def pids_of(llm: LLM) -> list[int]:
    workers = ranks_of(llm).workers
    assert isinstance(workers, StartedRanks)
    return workers.pids


def ranks_below(parent: int) -> list[int]:
    """The processes that `parent` has started as ranks of a model, by rank."""
    found = {}
    for process in psutil.Process(parent).children():
        with suppress(psutil.NoSuchProcess):
            if WORKER in (command := process.cmdline()):
                found[int(command[command.index(WORKER) + 1])] = process.pid
    return [found[rank] for rank in sorted(found)]


def lives(pid: int) -> bool:
    """Whether a process computes or waits: what has ended, and nobody has asked for how, does not count."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def until_ended(pids: Iterable[int]) -> None:
    """Wait until none of these processes lives."""
    until(lambda: not any(map(lives, pids)), "the end of the ranks")
