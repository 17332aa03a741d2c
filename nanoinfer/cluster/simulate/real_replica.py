"""RealReplica: a worker process with a real engine, for the driver the same as a simulated Replica."""

import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from nanoinfer.cache.block_events import EventBatch
from nanoinfer.cluster.costs import MeasuredPass
from nanoinfer.cluster.simulate.real_clock import RealClock
from nanoinfer.cluster.simulate.request import SimRequest
from nanoinfer.cluster.simulate.worker import WorkerSpec

WAIT_S = 60.0  # for a process to end by itself


class Answers:
    """The tokens that models really answered with, by the answer's segment: later prompts of the session contain them."""

    def __init__(self) -> None:
        self._tokens: dict[int, np.ndarray] = {}

    def note(self, request: SimRequest, token_ids: Sequence[int]) -> None:
        """Keep the answer to a request."""
        self._tokens[request.turn.answer.id] = np.array(token_ids, dtype=np.int64)

    def prompt(self, request: SimRequest) -> np.ndarray:
        """The prompt of a request with the real answers in it, int64."""
        vocab = request.vocab_size
        parts = [self._tokens.get(part.id) for part in request.turn.prompt]
        return np.concatenate(
            [
                part.tokens(vocab) if known is None else known
                for part, known in zip(request.turn.prompt, parts, strict=True)
            ]
        )


class RealReplica:
    """Use it in a `with` block, which starts the process and ends it. RuntimeError when the process has failed."""

    def __init__(
        self,
        spec: WorkerSpec,
        clock: RealClock,
        on_first_token: Callable[[SimRequest], object],
        on_end: Callable[[SimRequest], object],
        answers: Answers,
        on_events: Callable[[EventBatch], object] | None = None,
    ):
        self._spec, self._clock, self._answers, self._on_events = spec, clock, answers, on_events
        self._on_first_token, self._on_end = on_first_token, on_end
        self._requests: dict[int, SimRequest] = {}
        self._costs: list[MeasuredPass] | None = None
        self._told = threading.Condition()
        self._ready = self._closed = False
        self.busy_seconds = 0.0  # unknown: nobody looks into the process

    def __enter__(self) -> "RealReplica":
        self._process = subprocess.Popen(
            [sys.executable, "-m", "nanoinfer.cluster.simulate.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._send(self._spec)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._closed = True
        try:
            self._send(("stop",))
            self._process.wait(WAIT_S)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        finally:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._reader.join()
            self._process.stdout.close()
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    def wait_until_ready(self, timeout_s: float = 300.0) -> None:
        """Wait until the model is loaded."""
        self._wait(lambda: self._ready, timeout_s)

    def calibrate(self, rounds: int = 3, seed: int = 0, timeout_s: float = 600.0) -> list[MeasuredPass]:
        """What passes take in this process (see calibrate.py). Only before the first request."""
        return self._ask_costs(timeout_s, "calibrate", rounds, seed)

    def passes(self, timeout_s: float = 60.0) -> list[MeasuredPass]:
        """The passes in which requests were served since the last call, in order."""
        return self._ask_costs(timeout_s, "passes")

    def _ask_costs(self, timeout_s: float, *command: Any) -> list[MeasuredPass]:
        self._costs = None
        self._send(command)
        self._wait(lambda: self._costs is not None, timeout_s)
        assert self._costs is not None
        return self._costs

    def submit(self, request: SimRequest) -> None:
        """Send a request to the process."""
        self._requests[request.id] = request
        self._send(("submit", request.id, self._answers.prompt(request), request.turn.answer.length))

    @property
    def open_requests(self) -> int:
        """How many requests have not ended."""
        return len(self._requests)

    def _send(self, what: Any) -> None:
        assert self._process.stdin is not None
        pickle.dump(what, self._process.stdin)
        self._process.stdin.flush()

    def _wait(self, what: Callable[[], bool], timeout_s: float) -> None:
        with self._told:
            if not self._told.wait_for(lambda: what() or self._process.poll() is not None, timeout_s):
                raise RuntimeError(f"the replica's process says nothing for {timeout_s} seconds")
        if not what():
            raise RuntimeError(f"the replica's process has ended with exit code {self._process.poll()}")

    def _read(self) -> None:
        """In a thread: hand on what the process tells."""
        assert self._process.stdout is not None
        while True:
            try:
                what = pickle.load(self._process.stdout)
            except (EOFError, pickle.UnpicklingError):
                break
            if what[0] == "ready":
                self._ready = True
            elif what[0] == "costs":
                self._costs = what[1]
            else:
                self._clock.post(partial(self._handle, *what))
            with self._told:
                self._told.notify_all()
        self._process.wait()
        with self._told:
            self._told.notify_all()
        if not self._closed:
            self._clock.post(self._fail)

    def _handle(self, kind: str, number: Any, *rest: Any) -> None:
        if kind == "events":
            if self._on_events is not None:
                self._on_events(number)
            return
        request = self._requests[number]
        if kind == "first":
            request.first_token, request.cached_tokens = self._clock.seconds(rest[0]), rest[1]
            self._on_first_token(request)
        elif kind == "end":
            request.ended, request.output_tokens = self._clock.seconds(rest[0]), len(rest[1])
            del self._requests[number]
            self._answers.note(request, rest[1])
            self._on_end(request)
        else:
            raise RuntimeError(f"request {number}: {rest[0]}")

    def _fail(self) -> None:
        raise RuntimeError(f"a replica's process has ended with exit code {self._process.poll()}")
