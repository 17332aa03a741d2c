"""RealClock: a Clock whose seconds are real, so that the same driver runs simulated and real replicas."""

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from nanoinfer.cluster.simulate.clock import Clock

Call = Callable[[], object]


class RealClock(Clock):
    """Seconds since it was made. `post` has a call made in the thread that runs it, from any thread.

    `run` goes on while calls are due later, or `busy` says that more will be posted.
    """

    def __init__(self, busy: Callable[[], bool]) -> None:
        super().__init__()
        self.started = time.perf_counter()
        self._busy = busy
        self._posted: SimpleQueue[Call] = SimpleQueue()

    def seconds(self, perf_counter: float) -> float:
        """A reading of `time.perf_counter`, in any process of this machine, as seconds of this clock."""
        return perf_counter - self.started

    def restart(self) -> None:
        """Begin again at 0. ValueError while calls are pending."""
        if self._calls:
            raise ValueError(f"pending={self.pending}: must be 0")
        self.started, self.now = time.perf_counter(), 0.0

    def post(self, call: Call) -> None:
        """Have `call` made soon, in the thread that runs the clock."""
        self._posted.put(call)

    def after(self, seconds: float, call: Call) -> None:
        """Have `call` made in so many seconds."""
        self.at(max(self.now, self.seconds(time.perf_counter())) + seconds, call)

    def run(self, until: float = float("inf")) -> None:
        """Make calls when they are due, and posted ones at once, until nothing is left or `until` has come."""
        while self._calls or self._busy() or not self._posted.empty():
            now = self.seconds(time.perf_counter())
            if now >= until:
                break
            due = min(self._calls[0][0] if self._calls else until, until)
            if due <= now and self._calls:
                super().run(until=min(now, until) + 1e-9)
                continue
            try:
                self.now = max(self.now, now)
                call = self._posted.get(timeout=min(due - now, 0.2))
            except Empty:
                continue
            self.now = max(self.now, self.seconds(time.perf_counter()))
            call()
