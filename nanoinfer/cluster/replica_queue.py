"""ReplicaQueue: how many seconds of work a new request would find ahead of it at one replica."""

from math import ceil
from typing import NamedTuple

from nanoinfer.cluster.costs import PassCosts


class Work(NamedTuple):
    """What a request without a first token still takes: EXTEND passes, and seconds in them. `tokens`: of its prompt."""

    seconds: float
    passes: int
    tokens: int


def work_of(costs: PassCosts, chunk_tokens: int, prompt_tokens: int, cached_tokens: int) -> Work:
    """What a prompt takes if its first `cached_tokens` tokens are cached; at least one token is computed."""
    cached = min(cached_tokens, prompt_tokens - 1)
    passes = ceil((prompt_tokens - cached) / chunk_tokens)
    overhead = costs.seconds_per_pass + costs.extra_seconds_per_extend
    return Work(costs.prefill_seconds(prompt_tokens, cached) + passes * overhead, passes, prompt_tokens)


class ReplicaQueue:
    """What one replica has to do, as this router knows it: the requests that it has sent there."""

    def __init__(self, costs: PassCosts, max_running: int | None) -> None:
        self._costs, self._max_running = costs, max_running
        self._waiting: dict[str, Work] = {}  # in the order in which they were sent
        self._running: dict[str, int] = {}  # request id → prompt tokens
        self._front_since = 0.0  # when the first of those that wait became the first
        self._seconds, self._passes, self._context = 0.0, 0, 0  # sums over them

    def add(self, request_id: str, work: Work, now: float) -> None:
        """A request has been sent."""
        if not self._waiting:
            self._front_since = now
        self._waiting[request_id] = work
        self._seconds += work.seconds
        self._passes += work.passes
        self._context += work.tokens

    def start(self, request_id: str, now: float) -> None:
        """A request's prompt has been computed."""
        self._running[request_id] = self._stop_waiting(request_id, now).tokens

    def end(self, request_id: str, now: float) -> None:
        """A request is over, in whichever state."""
        if request_id in self._running:
            self._context -= self._running.pop(request_id)
        else:
            self._context -= self._stop_waiting(request_id, now).tokens

    def queued_seconds(self, output_tokens: float, now: float) -> float:
        """By how much the work that is there delays a new request, until its last of so many output tokens."""
        seconds = self._seconds
        if self._waiting:  # the first one is being computed
            seconds -= min(now - self._front_since, next(iter(self._waiting.values())).seconds)
        seconds += self._passes * self._decode(len(self._running), 0)
        return seconds + output_tokens * self._slowdown(len(self._waiting) + len(self._running), self._context)

    def _slowdown(self, rows: float, context: float) -> float:
        """By how much `rows` other requests, with so many tokens, delay each token of one that runs beside them."""
        costs = self._costs
        if self._max_running is None or rows < self._max_running:
            return rows * costs.seconds_per_decode_row + context * costs.seconds_per_context_token
        # A full batch ends `max_running` requests in the time of their outputs, and those beyond wait for that many ends.
        full = self._decode(self._max_running, context * self._max_running / rows)
        return full * (1 + (rows - self._max_running) / self._max_running)

    def _decode(self, rows: float, context: float) -> float:
        """Seconds of a decode pass, if there is anything to decode."""
        return self._costs.decode_seconds(rows, context) if rows else 0.0

    def _stop_waiting(self, request_id: str, now: float) -> Work:
        if next(iter(self._waiting)) == request_id:
            self._front_since = now
        work = self._waiting.pop(request_id)
        self._seconds = self._seconds - work.seconds if self._waiting else 0.0  # no rounding errors stay
        self._passes -= work.passes
        return work
