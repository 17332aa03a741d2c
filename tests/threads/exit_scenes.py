"""Processes that end while requests are in flight, each at a moment that events fix. test_exit.py looks how they end.

`python -X faulthandler -m tests.threads.exit_scenes CHECKPOINT RESULTS [SCENE ...]` loads what takes long, then forks once
per scene; the child plays it and ends as any script does. RESULTS gets the return code of each, and what it printed.
"""

import _thread
import asyncio
import atexit
import gc
import json
import logging
import os
import queue
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from nanoinfer import LLM, AsyncEngine, SamplingParams
from nanoinfer.model.loader import LoadedModel, load_model
from nanoinfer.threads import exit_gate as exit_gate_module
from nanoinfer.threads.exit_gate import ExitGate, exit_gate
from tests.helpers.engines import Clock
from tests.helpers.tiny_llm import tiny_llm
from tests.helpers.waiting import HANG_S, until, until_async
from tests.soak.episodes.exits import WAYS, wait_for

PARAMS = SamplingParams(max_new_tokens=30, temperature=0.0)


class Held:
    """A model whose passes, from the second one on, wait until Python begins to exit."""

    def __init__(self, llm: LLM):
        self.model, self.passes = llm.engine.model_runner.model, 0
        self.is_waiting, self.goes_on = threading.Event(), threading.Event()
        llm.engine.model_runner.model = self
        atexit.register(self.goes_on.set)  # it is called before what was registered before it: the gate's `close`

    def __call__(self, *args: Any) -> Any:
        self.passes += 1
        if self.passes > 1:
            self.is_waiting.set()
            assert self.goes_on.wait(HANG_S)
        return self.model(*args)


# --- in flight: a pass that is being made ----------------------------------------------------------------------------


def a_call(llm: LLM, held: Held) -> None:
    """Of a daemon thread."""

    def call() -> None:
        while True:
            llm.generate([[1, 2, 3], [4, 5]], PARAMS, use_tqdm=False)

    threading.Thread(target=call, daemon=True).start()


async def busy(engine: AsyncEngine, held: Held) -> None:
    """One request that has a token and is in a pass, and two that are not queued yet."""
    stream = await engine.add([9, 8], PARAMS)
    await anext(stream)
    await until_async(held.is_waiting.is_set)
    held.tasks = [asyncio.create_task(engine.generate([i + 1, 2, 3], PARAMS)) for i in range(2)]  # type: ignore[attr-defined]
    held.stream = stream  # type: ignore[attr-defined]
    await asyncio.sleep(0)


def a_loop_that_is_closed(llm: LLM, held: Held) -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(busy(AsyncEngine(llm), held))
    loop.close()


def a_loop_that_was_run(llm: LLM, held: Held) -> None:
    asyncio.run(busy(AsyncEngine(llm), held))


def a_loop_of_a_daemon_thread(llm: LLM, held: Held) -> None:
    engine = AsyncEngine(llm)

    async def go_on() -> None:
        await busy(engine, held)
        await asyncio.Event().wait()

    threading.Thread(target=lambda: asyncio.run(go_on()), daemon=True).start()


IN_FLIGHT: dict[str, Callable[[LLM, Held], None]] = {
    "a call": a_call,
    "a loop that is closed": a_loop_that_is_closed,
    "a loop that was run": a_loop_that_was_run,
    "a loop of a daemon thread": a_loop_of_a_daemon_thread,
}


def leave(way: str) -> None:
    """One of exits.WAYS, in main."""
    if way == "sys.exit":
        sys.exit(WAYS[way])
    if way == "exception":
        raise ValueError("on purpose")
    if way == "SIGTERM handled":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(WAYS[way]))
    number = {"SIGTERM handled": signal.SIGTERM, "SIGTERM": signal.SIGTERM, "KeyboardInterrupt": signal.SIGINT}.get(way)
    if number is not None:
        signal.raise_signal(number)


def leave_during_a_pass(way: str, what: str) -> Callable[[LLM], None]:
    def scene(llm: LLM) -> None:
        held = Held(llm)
        IN_FLIGHT[what](llm, held)
        until(held.is_waiting.is_set, "a pass")
        leave(way)

    return scene


# --- streams that nobody reads to their end --------------------------------------------------------------------------


def a_stream_that_is_half_read(llm: LLM) -> None:
    global stream
    stream = llm.stream([1, 2], PARAMS)
    next(stream)


def an_exception_in_the_loop_over_a_stream(llm: LLM) -> None:
    for _ in llm.stream([1, 2], PARAMS):
        raise SystemExit(0)


def a_stream_in_a_cycle(llm: LLM) -> None:
    global cycle
    cycle = [llm.stream([1, 2], PARAMS)]
    cycle.append(cycle)
    next(cycle[0])


# --- exit functions that run after the gate was closed ----------------------------------------------------------------


class Watched:
    """The gate, with a clock that runs while an exit function of the user's does: 10 seconds from look to look."""

    def __init__(self, exit_function: Callable[[], object]):
        self.clock, self.looks, self.runs = Clock(), 0, False
        self.at_look: Callable[[], object] = lambda: None
        self._look = ExitGate._exit_function_waits
        ExitGate._exit_function_waits = self.look  # type: ignore[method-assign, assignment]
        exit_gate_module.time = SimpleNamespace(monotonic=self.clock)  # type: ignore[assignment]
        atexit.unregister(exit_gate.close)  # as if the program had registered its function before the import
        atexit.register(exit_function)
        atexit.register(self.begin)
        atexit.register(exit_gate.close)

    def begin(self) -> None:
        self.runs = True

    def look(self) -> bool:
        if self.runs:
            self.clock.now += 10
            self.looks += 1
        is_let_in = self._look(exit_gate)
        self.at_look()
        return is_let_in


def calls_go_on(llm: LLM) -> None:
    """In a daemon thread; the first one has ended."""
    done = threading.Event()

    def call() -> None:
        while True:
            llm.generate([1, 2], PARAMS, use_tqdm=False)
            done.set()

    threading.Thread(target=call, daemon=True).start()
    until(done.is_set, "a call")


def check_that_nobody_is_inside() -> None:
    assert not exit_gate._inside


def an_exit_function_that_takes_long(llm: LLM) -> None:
    def take_long() -> None:
        until(lambda: watched.looks > 5, "looks")
        check_that_nobody_is_inside()

    watched = Watched(take_long)
    calls_go_on(llm)


def an_exit_function_in_c_that_takes_long(llm: LLM) -> None:
    """There is no line of Python around it: as when a busy machine keeps Python from going on."""
    lock = _thread.allocate_lock()
    lock.acquire()

    def look() -> None:
        if watched.looks == 5:
            check_that_nobody_is_inside()
            lock.release()

    watched = Watched(lock.acquire)
    watched.at_look = look
    calls_go_on(llm)


def an_exit_function_that_waits_for_a_daemon_thread(llm: LLM) -> None:
    tasks: queue.Queue[list[int]] = queue.Queue()
    outputs = []
    worker = threading.Thread(target=lambda: outputs.extend(llm.generate(tasks.get(), PARAMS)), daemon=True)
    worker.start()

    def finish() -> None:
        tasks.put([1, 2])
        worker.join(HANG_S)
        assert [len(output.token_ids) for output in outputs] == [30]

    Watched(finish)


# --- all of them -----------------------------------------------------------------------------------------------------

LEAVING = [
    ("end of main", "a call"),
    ("sys.exit", "a call"),
    ("exception", "a call"),
    ("SIGTERM handled", "a call"),
    ("SIGTERM", "a call"),
    ("end of main", "a loop that is closed"),
    ("sys.exit", "a loop of a daemon thread"),
    ("KeyboardInterrupt", "a loop that was run"),
]
SCENES: dict[str, Callable[[LLM], None]] = {
    f"{way} during a pass of {what}": leave_during_a_pass(way, what) for way, what in LEAVING
}
CODES = dict(zip(SCENES, [WAYS[way] for way, _ in LEAVING], strict=True))
QUIET: list[Callable[[LLM], None]] = [
    a_stream_that_is_half_read,
    an_exception_in_the_loop_over_a_stream,
    a_stream_in_a_cycle,
    an_exit_function_that_takes_long,
    an_exit_function_in_c_that_takes_long,
    an_exit_function_that_waits_for_a_daemon_thread,
]
SCENES |= {scene.__name__.replace("_", " "): scene for scene in QUIET}


def play(scene: Callable[[LLM], None], model: LoadedModel, output: int) -> None:
    """In the child."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)  # torch makes its thread pool anew after a fork, which two threads may not do at once
    logging.getLogger("asyncio").disabled = True  # that says which tasks were pending when a loop was closed
    scene(tiny_llm(model, max_total_tokens=256, max_running_requests=4, max_context_len=128))


def main(arguments: Sequence[str]) -> None:
    """Returns in each child, too."""
    checkpoint, results, *names = arguments
    torch.set_num_threads(1)
    model, found = load_model(checkpoint), {}
    gc.freeze()  # children need not collect, as they end, what was loaded here
    for name in names or SCENES:
        with tempfile.TemporaryFile() as output:
            pid = os.fork()
            if pid == 0:
                play(SCENES[name], model, output.fileno())
                return
            code = wait_for(pid, HANG_S)
            output.seek(0)
            found[name] = code, output.read().decode(errors="replace")
    Path(results).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
