"""Worker: a thread that does jobs one after the other, and that nobody has to wait for."""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

Job = Callable[[], object]
logger = logging.getLogger("nanoinfer.cache")


class Worker:
    """Does jobs in order in a thread of its own, which starts with the first one and is a daemon. For any thread.

    `most`: how much the jobs that are not done yet may weigh together. A job must not keep a reference to what owns the
    worker longer than it takes. `ended` is done when it is closed and does no job any more. In a forked process it does
    nothing.
    """

    def __init__(self, name: str, most: int | None = None, clock: Callable[[], float] = time.monotonic):
        self._name, self._most, self._clock = name, most, clock
        self._changed = threading.Condition()
        self._jobs: deque[tuple[Job, int, Job]] = deque()
        self._thread: threading.Thread | None = None
        self._began: float | None = None  # the job that it does now
        self._is_closed, self._process = False, os.getpid()
        self.load = 0  # the weight of all jobs that are not done yet
        self.ended = Future[None]()

    def put(self, job: Job, weight: int = 0, dropped: Job = lambda: None) -> bool:
        """Have a job done, or `dropped` if that is never begun. False, at once, if there is no room for it or the worker is
        closed; then it is neither."""
        if os.getpid() != self._process:
            return False
        with self._changed:
            if self._is_closed or not self.has_room(weight):
                return False
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # Python is exiting
                    return False
                self._thread = thread
            self._jobs.append((job, weight, dropped))
            self.load += weight
            self._changed.notify_all()
            return True

    def has_room(self, weight: int) -> bool:
        """Whether it has room for a job of this weight now."""
        return self._most is None or self.load + weight <= self._most

    def busy_for(self) -> float:
        """How many seconds it has been at the same job."""
        began = self._began
        return 0.0 if began is None else self._clock() - began

    def wait(self, timeout: float | None) -> bool:
        """Wait until all jobs are done, at most `timeout` seconds; whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs and self._began is None, timeout)

    def close(self, timeout: float | None = 0.0) -> bool:
        """Take no more jobs, and wait as `wait` does. Jobs that have not begun then are dropped. Whether all were done."""
        if os.getpid() != self._process:
            return False
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        done = self.wait(timeout)
        with self._changed:
            never_begun, self._jobs = self._jobs, deque()
            self._has_changed()
        for _, _, dropped in never_begun:
            dropped()
        return done

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._is_closed)
                if not self._jobs:
                    return
                (job, weight, _), self._began = self._jobs.popleft(), self._clock()
            try:
                job()
            except Exception:
                logger.exception("files of K/V: a bug")
            del job  # it may refer to what owns this worker
            with self._changed:
                self._began, self.load = None, self.load - weight
                self._has_changed()

    def _has_changed(self) -> None:
        self._changed.notify_all()
        if self._is_closed and not self._jobs and self._began is None and not self.ended.done():
            self.ended.set_result(None)


class Pace:
    """How long to wait after each piece of work so that there are at most `per_second` bytes in a second on average.

    Time in which nothing was done is not made up for.
    """

    def __init__(self, per_second: float | None, clock: Callable[[], float] = time.monotonic):
        self._per_second, self._clock, self._free_at = per_second, clock, 0.0

    def pause_after(self, num_bytes: int, began: float) -> float:
        """Seconds to wait after `num_bytes`, work on which began at `began`."""
        if self._per_second is None:
            return 0.0
        self._free_at = max(self._free_at, began) + num_bytes / self._per_second
        return max(0.0, self._free_at - self._clock())
