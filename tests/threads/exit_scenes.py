"""Processes that end while requests are in flight, each at a moment that events fix. test_exit.py looks how they end.

`python -X faulthandler -m tests.threads.exit_scenes CHECKPOINT RESULTS [SCENE ...]` loads what takes long, then forks once
per scene; the child plays it and ends as any script does. RESULTS gets the return code of each, and what it printed.
"""

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
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from nanoinfer import LLM, AsyncEngine, EngineClosedError, SamplingParams
from nanoinfer.model.loader import LoadedModel, load_model
from nanoinfer.threads.exit_gate import exit_gate
from tests.helpers.tiny_llm import tiny_llm
from tests.helpers.waiting import HANG_S, Worker, until, until_async
from tests.soak.episodes.exits import WAYS, wait_for

PARAMS = SamplingParams(max_new_tokens=30, temperature=0.0)
FIELDS = {"max_total_tokens": 256, "max_running_requests": 4, "max_context_len": 128}


streams: list[Any] = []  # what is kept until the end
kept: list[Any] = []


class Held:
    """A model whose passes, from the second one on, wait until Python begins to exit. The first one waits for `begins`."""

    def __init__(self, llm: LLM):
        self.model, self.passes = llm.engine.model_runner.model, 0
        self.is_waiting, self.goes_on = threading.Event(), threading.Event()
        self.tasks: list[asyncio.Task[Any]] = []
        self.stream: Any = None
        self.begins: Callable[[], bool] = lambda: True
        llm.engine.model_runner.model = self
        atexit.register(self.goes_on.set)  # it is called before what was registered before it: the gate's `close`

    def __call__(self, *args: Any) -> Any:
        self.passes += 1
        if self.passes == 1:
            until(self.begins)
        else:
            self.is_waiting.set()
            assert self.goes_on.wait(HANG_S)
        return self.model(*args)


# --- in flight: a pass that is being made ----------------------------------------------------------------------------


def a_call(llm: LLM, held: Held) -> None:
    """Of a daemon thread, which calls on and on, and ends without a word."""

    def call() -> None:
        while True:
            llm.generate([[1, 2, 3], [4, 5]], PARAMS, use_tqdm=False)

    threading.Thread(target=call, daemon=True).start()


def a_stream_that_is_half_read(llm: LLM, held: Held) -> None:
    held.stream = llm.stream([1, 2], PARAMS)
    next(held.stream)


async def busy(engine: AsyncEngine, held: Held) -> None:
    """One request that has a token and is in a pass, and two that are not queued yet."""
    stream = await engine.add([9, 8], PARAMS)
    await anext(stream)
    await until_async(held.is_waiting.is_set)
    held.tasks = [asyncio.create_task(engine.generate([i + 1, 2, 3], PARAMS)) for i in range(2)]
    held.stream = stream
    await asyncio.sleep(0)


def a_loop_that_is_closed(llm: LLM, held: Held) -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(busy(AsyncEngine(llm), held))
    loop.close()


def a_loop_that_was_run(llm: LLM, held: Held) -> None:
    asyncio.run(busy(AsyncEngine(llm), held))


def a_loop_of_a_daemon_thread(llm: LLM, held: Held) -> None:
    in_a_daemon_thread(AsyncEngine(llm), held)


def in_a_daemon_thread(engine: AsyncEngine, held: Held) -> None:
    async def go_on() -> None:
        with suppress(EngineClosedError):
            await busy(engine, held)
        await asyncio.Event().wait()

    threading.Thread(target=lambda: asyncio.run(go_on()), daemon=True).start()


def several_doors(llm: LLM, held: Held) -> None:
    """Of one engine: calls of daemon threads, a stream, and an AsyncEngine, all in the pass that is being made."""
    loop, turns, engine = llm._calls.loop, llm.engine.turns, AsyncEngine(llm)
    held.begins = lambda: len(turns.waiting) == 2 and not loop._commands.empty()
    a_call(llm, held)
    until(lambda: held.passes, "a pass")
    a_call(llm, held)
    streams.append(llm.stream([1, 2], PARAMS))
    Worker(next, streams[0])
    in_a_daemon_thread(engine, held)
    until(held.is_waiting.is_set, "a pass")
    assert len(loop.request_ids()) == 6


IN_FLIGHT: dict[str, Callable[[LLM, Held], None]] = {
    "a call": a_call,
    "a loop that is closed": a_loop_that_is_closed,
    "a loop that was run": a_loop_that_was_run,
    "a loop of a daemon thread": a_loop_of_a_daemon_thread,
    "a stream that is half read": a_stream_that_is_half_read,
    "several doors": several_doors,
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


def a_stream_of_which_one_piece_is_read(llm: LLM) -> None:
    """The others may have been computed since."""
    streams.append(llm.stream([1, 2], PARAMS))
    next(streams[0])


def an_exception_in_the_loop_over_a_stream(llm: LLM) -> None:
    for _ in llm.stream([1, 2], PARAMS):
        raise SystemExit(0)


def a_stream_in_a_cycle(llm: LLM) -> None:
    cycle: list[Any] = [llm.stream([1, 2], PARAMS)]
    cycle.append(cycle)
    next(cycle[0])
    streams.append(cycle)


# --- nothing in flight -----------------------------------------------------------------------------------------------


def an_llm_that_was_never_used(llm: LLM) -> None:
    kept.append(llm)


def an_idle_llm(llm: LLM) -> None:
    kept.append(llm)
    check(llm)


def an_idle_async_engine(llm: LLM) -> None:
    engine = AsyncEngine(llm)
    kept.append(engine)
    assert len(asyncio.run(engine.generate([1, 2], PARAMS)).token_ids) == 30
    check(llm)


def check(llm: LLM) -> None:
    """It serves."""
    assert len(llm.generate([1, 2], PARAMS)[0].token_ids) == 30


# --- engines that come too late ---------------------------------------------------------------------------------------


def an_llm_that_is_made_while_engines_are_ended(llm: LLM) -> None:
    """By a thread of the program's."""

    class Late:
        def call(self) -> None:
            def late() -> None:
                with suppress(SystemExit):
                    print(tiny_llm(llm.model, **FIELDS).generate([1, 2], PARAMS))

            Worker(late).result()

    check(llm)
    kept.append(Late())
    exit_gate.before_closing(kept[0].call)


# --- exit functions that run after the gate was closed ----------------------------------------------------------------


def last(exit_function: Callable[[], object]) -> None:
    """Have Python call it after the gate's `close`, as if the program had registered it before the import."""
    atexit.unregister(exit_gate.close)
    atexit.register(exit_function)
    atexit.register(exit_gate.close)


def an_exit_function_that_calls(llm: LLM) -> None:
    """An engine that has served, one that has not, and one that is made there."""
    check(llm)
    unused = tiny_llm(llm.model, **FIELDS)

    def call() -> None:
        for each in (llm, unused, tiny_llm(llm.model, **FIELDS)):
            for _ in range(2):
                try:
                    each.generate([1, 2], PARAMS)
                except EngineClosedError:
                    continue
                print("served")
        assert not exit_gate._inside

    last(call)


def an_exit_function_that_waits_for_a_thread_that_calls_on_and_on(llm: LLM) -> None:
    done = threading.Event()

    def call() -> None:
        while True:
            llm.generate([1, 2], PARAMS, use_tqdm=False)
            done.set()

    worker = Worker(call)
    until(done.is_set, "a call")

    def finish() -> None:
        worker.join(HANG_S)
        assert not worker.is_alive()
        assert not exit_gate._inside

    last(finish)


def an_exit_function_that_waits_for_a_thread_that_calls_late(llm: LLM) -> None:
    """That thread ends, without a word."""
    tasks: queue.Queue[list[int]] = queue.Queue()
    outputs = []
    worker = threading.Thread(target=lambda: outputs.extend(llm.generate(tasks.get(), PARAMS)), daemon=True)
    worker.start()

    def finish() -> None:
        tasks.put([1, 2])
        worker.join(HANG_S)
        assert not worker.is_alive()
        assert not outputs

    last(finish)


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
    ("end of main", "a stream that is half read"),
    ("end of main", "several doors"),
    ("sys.exit", "several doors"),
]
SCENES: dict[str, Callable[[LLM], None]] = {
    f"{way} during a pass of {what}": leave_during_a_pass(way, what) for way, what in LEAVING
}
CODES = dict(zip(SCENES, [WAYS[way] for way, _ in LEAVING], strict=True))
QUIET: list[Callable[[LLM], None]] = [
    a_stream_of_which_one_piece_is_read,
    an_exception_in_the_loop_over_a_stream,
    a_stream_in_a_cycle,
    an_llm_that_was_never_used,
    an_idle_llm,
    an_idle_async_engine,
    an_llm_that_is_made_while_engines_are_ended,
    an_exit_function_that_calls,
    an_exit_function_that_waits_for_a_thread_that_calls_on_and_on,
    an_exit_function_that_waits_for_a_thread_that_calls_late,
]
SCENES |= {scene.__name__.replace("_", " "): scene for scene in QUIET}


def play(scene: Callable[[LLM], None], model: LoadedModel, output: int) -> None:
    """In the child."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)  # torch makes its thread pool anew after a fork, which two threads may not do at once
    logging.getLogger("asyncio").disabled = True  # that says which tasks were pending when a loop was closed
    scene(tiny_llm(model, **FIELDS))


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
