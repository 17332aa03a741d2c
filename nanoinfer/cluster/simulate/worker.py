"""The process of one real replica: an AsyncEngine on one thread, which is told by pickles on standard input what to do.

    python -m nanoinfer.cluster.simulate.worker

In: a WorkerSpec, then tuples ("calibrate", rounds), ("submit", id, token ids, new tokens), ("passes",), ("stop",).
Out: ("ready",), ("costs", [MeasuredPass]), ("first", id, time, cached tokens), ("end", id, time, token ids), ("failed",
id, why), ("events", batch). "passes" asks for the "costs" of the passes since it was asked before. Times are readings of
`time.perf_counter`, which all processes of a machine share.
"""

import asyncio
import os
import pickle
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

from nanoinfer.cluster.costs import PassCosts

if TYPE_CHECKING:
    from nanoinfer.cluster.pass_log import PassLog


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker serves: the bundled or local `model`, a `random` one (with these changes of its shape), or one that
    sleeps what `costs` say. `options`: fields of EngineConfig. `event_block_size`: None: it reports no blocks."""

    model: str = "random"
    options: dict[str, Any] = field(default_factory=dict)
    shape: dict[str, Any] = field(default_factory=dict)
    costs: PassCosts | None = None
    threads: int = 1
    event_block_size: int | None = None


def make_engine_of(spec: WorkerSpec) -> Any:
    """The engine that a spec describes. ValueError as from what it is made of."""
    from nanoinfer.config import EngineConfig
    from nanoinfer.frontends.llm import LLM, make_engine
    from nanoinfer.model.random_model import random_model

    if spec.costs is not None:
        from nanoinfer.cluster.simulate.sleeping import sleeping_engine

        return sleeping_engine(EngineConfig(**spec.options), spec.costs)
    if spec.model == "random":
        return make_engine(random_model(**spec.shape), EngineConfig(**spec.options))
    return LLM(spec.model, **spec.options).engine


class Worker:
    """Reads commands in a thread, serves them in the event loop, writes what happens."""

    def __init__(self, engine: Any, commands: BinaryIO, results: BinaryIO, event_block_size: int | None = None):
        self._engine, self._commands, self._results = engine, commands, results
        self._event_block_size, self._seq = event_block_size, 0
        self._lock = threading.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._passes: PassLog | None = None  # while it serves

    def tell(self, *what: Any) -> None:
        """Send one result. From any thread."""
        with self._lock:
            pickle.dump(what, self._results)
            self._results.flush()

    async def serve(self) -> None:
        """Serve commands until one says stop, or nobody sends any more."""
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[tuple[Any, ...]]()
        self.tell("ready")
        reader = threading.Thread(target=self._read, args=(loop, queue), daemon=True)
        reader.start()
        served = None
        while (command := await queue.get())[0] != "stop":
            if command[0] == "calibrate":
                from nanoinfer.cluster.calibrate import measure_passes

                if served is not None:
                    raise RuntimeError("calibrate: only before the first request")
                self.tell("costs", measure_passes(self._engine, *command[1:]))
                self._engine.flush_cache()
                continue
            if command[0] == "passes":
                self.tell("costs", [] if self._passes is None else self._passes.take())
                continue
            if served is None:
                served = self._start()
            task = asyncio.create_task(self._request(served, *command[1:]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if served is not None:
            await served.shutdown()

    def _start(self) -> Any:
        """The engine in a thread of its own; its blocks are told after each step."""
        from nanoinfer.cluster.pass_log import PassLog
        from nanoinfer.frontends.async_engine import AsyncEngine

        self._passes = PassLog(self._engine)
        served = AsyncEngine(self._engine)
        if self._event_block_size is not None:
            feed = self._engine.block_feed(self._event_block_size)
            served.after_step = lambda engine: self._tell_blocks(feed)
        return served

    def _tell_blocks(self, feed: Any) -> None:
        batches = feed.since(self._seq)
        if batches is None:
            raise RuntimeError(f"batch {self._seq} is gone, although it was asked for after each step")
        self._seq += len(batches)
        for batch in batches:
            self.tell("events", batch)

    async def _request(self, engine: Any, number: int, token_ids: Any, new_tokens: int) -> None:
        from nanoinfer.requests.sampling_params import SamplingParams

        tokens, first = list[int](), True
        try:
            params = SamplingParams(max_new_tokens=new_tokens, temperature=0, ignore_eos=True)
            stream = await engine.add(token_ids, params)
            async for piece in stream:
                if first:
                    self.tell("first", number, time.perf_counter(), piece.cached_tokens)
                    first = False
                tokens += piece.token_ids
            self.tell("end", number, time.perf_counter(), tokens)
        except Exception as error:  # the parent raises it
            self.tell("failed", number, f"{type(error).__name__}: {error}")

    def _read(self, loop: asyncio.AbstractEventLoop, queue: "asyncio.Queue[tuple[Any, ...]]") -> None:
        command: tuple[Any, ...] = ("",)
        while command[0] != "stop":
            try:
                command = pickle.load(self._commands)
            except EOFError:
                command = ("stop",)
            loop.call_soon_threadsafe(queue.put_nowait, command)


def main() -> None:
    """Serve what the first pickle on standard input describes. Nothing else may be printed to standard output."""
    results = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    spec: WorkerSpec = pickle.load(sys.stdin.buffer)
    import torch

    torch.set_num_threads(spec.threads)
    asyncio.run(Worker(make_engine_of(spec), sys.stdin.buffer, results, spec.event_block_size).serve())


if __name__ == "__main__":
    from nanoinfer.cluster.simulate.worker import main as imported_main  # so that WorkerSpec is that of the pickles

    imported_main()
