"""Processes that end while requests are in flight, at a random moment and in a random way.

`python -X faulthandler -m tests.soak.episodes.exits CHECKPOINT 0 10` loads what takes long, then forks once
per seed; the child makes an LLM and an AsyncEngine, of one engine or of two, keeps them busy, and leaves. Its return code
must be the one that Python gives for that way of leaving, and it must have said nothing else. What is in flight follows
from the seed; what the moment of leaving meets does not.
"""

import asyncio
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from nanoinfer import LLM, AsyncEngine, EngineClosedError, SamplingParams, StreamPiece
from nanoinfer.model.loader import LoadedModel, load_model
from tests.helpers.tiny_llm import tiny_llm

SECONDS = 60  # in which a process must have ended
WAYS = {  # how a process leaves, and its return code (below 0: the signal that ended it)
    "end of main": 0,
    "sys.exit": 3,
    "exception": 1,
    "SIGTERM handled": 5,
    "KeyboardInterrupt": -signal.SIGINT,
    "SIGTERM": -signal.SIGTERM,
}
ASYNC = ("none", "run", "loop left open", "in a daemon thread")


def random_process(rng: random.Random) -> dict[str, Any]:
    """What is in flight, how the process leaves, and when."""
    process = {
        "way": rng.choice(list(WAYS)),
        "daemons": rng.choice([0, 0, 1, 3]),
        "threads": rng.choice([0, 0, 1, 2]),
        "asynchronous": rng.choice(ASYNC),
        "shared": rng.random() < 0.5,  # one engine for all
        "streams": rng.choice([0, 0, 1, 2]),  # left half read
        "main_calls": rng.random() < 0.5,
        "seconds": rng.choice([0.0, rng.uniform(0, 0.01), rng.uniform(0, 0.1)]),
    }
    busy = any(process[kind] for kind in ("daemons", "threads", "streams")) or process["asynchronous"] != "none"
    return process if busy else random_process(rng)


def act(process: dict[str, Any], model: LoadedModel) -> None:
    """Everything up to the end of main, in a process that is about to leave."""
    llm = new_llm(model)
    params = SamplingParams(max_new_tokens=30, temperature=0.0)

    def calls(count: int) -> None:
        for _ in range(count):
            llm.generate([[1, 2, 3], [4, 5]], params, use_tqdm=False)
            for _ in llm.stream([6, 7], params):
                pass

    def calls_until_the_end() -> None:
        with suppress(EngineClosedError):
            while True:
                calls(1)

    for _ in range(process["daemons"]):
        threading.Thread(target=calls_until_the_end, daemon=True).start()
    for _ in range(process["threads"]):
        threading.Thread(target=calls, args=[1]).start()
    leave = leaving(process)
    if process["asynchronous"] != "none":
        with_async_engine(AsyncEngine(llm if process["shared"] else new_llm(model)), params, process)
    for i in range(process["streams"]):
        streams.append(llm.stream([8, i], params))
        next(streams[-1])
    stay(process, lambda: calls(1))
    leave()


streams: list[Iterator[StreamPiece]] = []  # kept until the end, as the loops that are left open
loops: list[asyncio.AbstractEventLoop] = []


def new_llm(model: LoadedModel) -> LLM:
    return tiny_llm(model, max_total_tokens=256, max_running_requests=4, max_context_len=128)


def leaving(process: dict[str, Any]) -> Callable[[], None]:
    """The function by which the process leaves; signals come from a timer of their own, at any moment."""
    way = process["way"]
    if way == "SIGTERM handled":

        def handler(number: int, frame: FrameType | None) -> None:
            raise SystemExit(WAYS[way])

        signal.signal(signal.SIGTERM, handler)
    number = {"SIGTERM handled": signal.SIGTERM, "SIGTERM": signal.SIGTERM, "KeyboardInterrupt": signal.SIGINT}.get(way)

    def leave() -> None:
        if way == "sys.exit":
            sys.exit(WAYS[way])
        if way == "exception":
            raise ValueError("on purpose")
        if number is not None:
            for _ in range(SECONDS * 10):  # the signal comes while main runs
                time.sleep(0.1)  # one that comes just before a sleep does not end it

    def send() -> None:
        time.sleep(process["seconds"])
        os.kill(os.getpid(), number)

    if number is not None:
        threading.Thread(target=send, daemon=True).start()
    return leave


def stay(process: dict[str, Any], call: Callable[[], None]) -> None:
    """In main, until the moment comes."""
    end = time.monotonic() + process["seconds"]
    while time.monotonic() < end:
        if process["main_calls"]:
            call()
        else:
            time.sleep(0.001)


def with_async_engine(engine: AsyncEngine, params: SamplingParams, process: dict[str, Any]) -> None:
    """Requests of an AsyncEngine in flight, in main's event loop or another thread's; nothing is shut down."""

    async def busy(seconds: float) -> None:
        tasks = [asyncio.create_task(engine.generate([i + 1, 2, 3], params)) for i in range(6)]
        stream = await engine.add([9, 8], params)
        end = time.monotonic() + seconds
        async for _ in stream:
            if time.monotonic() > end:
                break
        await asyncio.sleep(max(0.0, end - time.monotonic()))
        tasks.append(asyncio.create_task(engine.generate([5], params)))

    def run(seconds: float) -> None:
        with suppress(EngineClosedError, RuntimeError):  # asyncio's, for a coroutine that Python's exit has ended
            asyncio.run(busy(seconds))

    how = process["asynchronous"]
    if how == "run":
        run(process["seconds"])
    elif how == "in a daemon thread":
        threading.Thread(target=run, args=[SECONDS], daemon=True).start()
    else:
        loops.append(asyncio.new_event_loop())
        with suppress(EngineClosedError, RuntimeError):
            loops[-1].run_until_complete(busy(process["seconds"]))


def without_words_of_asyncio() -> None:
    """It says which tasks were pending or had not begun when their loop was closed, and that they cannot be ended now."""
    warnings.simplefilter("ignore", RuntimeWarning)
    logging.getLogger("asyncio").disabled = True
    hook = sys.unraisablehook
    sys.unraisablehook = lambda it: None if str(it.exc_value) == "Event loop is closed" else hook(it)


def wait_for(pid: int, seconds: float) -> int | None:
    """The return code of a child, as subprocess gives it; None when it had to be killed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGABRT)  # faulthandler says where it hung
    os.waitpid(pid, 0)
    return None


def is_right(said: str, way: str) -> bool:
    """Nothing, beside what Python says about an exception. One that a handler raises may also cut asyncio in two, which
    then says more."""
    if way in ("KeyboardInterrupt", "SIGTERM handled"):
        return "Fatal Python error" not in said and "the engine's thread" not in said
    return said.endswith("ValueError: on purpose\n") if way == "exception" else said == ""


def run_episode(checkpoint: Path, seed: int, count: int) -> Counter[str]:
    """`count` processes, from another one that has no threads yet. AssertionError with what was wrong."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.soak.episodes.exits", str(checkpoint)]
    done = subprocess.run(
        [*command, str(seed), str(count)], capture_output=True, text=True, timeout=60 + count * (SECONDS + 5)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Counter({"exits": count})


def main() -> None:
    """Fork, once per process, and compare; returns in the child, which then ends as any script does."""
    checkpoint, (first, count) = sys.argv[1], map(int, sys.argv[2:])
    torch.set_num_threads(1)
    model, failures = load_model(checkpoint), 0
    for seed in range(first, first + count):
        process = random_process(random.Random(seed))
        with tempfile.TemporaryFile() as output:
            pid = os.fork()
            if pid == 0:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                torch.set_num_threads(1)  # torch makes its thread pool anew, which two threads may not do at once
                without_words_of_asyncio()
                act(process, model)
                return
            code, way = wait_for(pid, SECONDS), process["way"]
            output.seek(0)
            said = output.read().decode(errors="replace")
            if code != WAYS[way] or not is_right(said, way):
                failures += 1
                print(f"FAILED: exit {seed}: {process}: return code {code}, must be {WAYS[way]}\n{said[-6000:]}")
    print(f"{count} exits, {failures} wrong")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
