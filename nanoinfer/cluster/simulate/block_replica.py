"""BlockReplica: a replica for large simulations: a RunCache instead of tree and pools, and many DECODEs in one event.

What it keeps of the scheduler: EXTEND comes first, as far as its budget of tokens goes (long prompts are computed in
chunks); then all running requests DECODE; requests that need what this pass computes wait for the next one; a request
waits until there are slots and a row for it. What it leaves out: the order by cached prefixes (it is first come, first
served), admission on credit with retractions, pages. DECODEs between two events are not simulated one by one: their
times are added up.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable

from nanoinfer.cluster.costs import PassCosts, attended_pairs
from nanoinfer.cluster.simulate.clock import Clock
from nanoinfer.cluster.simulate.request import SimRequest
from nanoinfer.cluster.simulate.routing import Told
from nanoinfer.cluster.simulate.run_cache import Key, RunCache
from nanoinfer.cluster.simulate.segments import chain
from nanoinfer.config import EngineConfig
from nanoinfer.scheduling.reasons_to_wait import WORTH_WAITING_FOR


class _Job:
    """A request in a BlockReplica. `done`: how many tokens of its prompt are computed or cached."""

    __slots__ = ("done", "keys", "lengths", "request")

    def __init__(self, request: SimRequest):
        segments = (*request.turn.prompt, request.turn.answer)
        self.request = request
        self.keys, self.lengths = chain(segments), [segment.length for segment in segments]
        self.done = 0


class BlockReplica:
    """Serves as Replica does, approximately, and much faster. `on_change`: see RunCache."""

    def __init__(
        self,
        number: int,
        config: EngineConfig,
        costs: PassCosts,
        clock: Clock,
        on_first_token: Told,
        on_end: Told,
        block_size: int = 16,
        on_change: Callable[[Key, bool], object] | None = None,
    ):
        self.number, self.config, self.costs, self._clock = number, config, costs, clock
        self.cache = RunCache(config.max_total_tokens, block_size, on_change)
        self.busy_seconds = 0.0
        self._on_first_token, self._on_end = on_first_token, on_end
        self._waiting: deque[_Job] = deque()
        self._prefilling: _Job | None = None  # its prompt is only partly computed
        self._decoding: list[tuple[int, int, _Job]] = []  # a heap by the DECODE with which each ends
        self._decodes = self._context = self._order = 0  # DECODEs so far; tokens of all that decode
        self._budget = self._full_budget = config.chunked_prefill_size or math.inf
        self._plan = 0  # events of plans before are void
        self._began: float | None = None  # when the DECODEs that are under way began; None in an EXTEND, and when idle
        self._idle = True

    @property
    def open_requests(self) -> int:
        """How many requests have not ended."""
        return len(self._waiting) + len(self._decoding) + (self._prefilling is not None)

    def submit(self, request: SimRequest) -> None:
        """Queue a request. ValueError if it can never fit."""
        total = request.turn.prompt_tokens + request.turn.answer.length
        limit = min(self.config.max_context_len, self.config.max_total_tokens)
        if total > limit:
            raise ValueError(f"request {request.id}: has {total} tokens: must not exceed {limit}")
        self._waiting.append(_Job(request))
        if self._idle:
            self._idle = False
            self._schedule(0.0, self._next_pass)
        elif self._began is not None and self._may_extend():
            passes = self._passes_in(self._clock.now - self._began)  # the one under way is finished first
            left = self._began + self._decode_time(passes) - self._clock.now
            self._schedule(max(left, 0.0), lambda: self._end_decodes(passes))

    # --- passes ----------------------------------------------------------------------------------------------------

    def _next_pass(self) -> None:
        if not self._decoding:
            self._budget = self._full_budget
        extend = self._plan_extend()
        if extend:
            self._extend(extend)
        elif self._decoding:
            passes = self._decoding[0][0] - self._decodes
            if (self._prefilling or self._waiting) and self._may_extend():
                passes = 1  # then there is a budget again
            self._began = self._clock.now
            self._schedule(self._decode_time(passes), lambda: self._end_decodes(passes))
        elif self._waiting or self._prefilling:
            raise RuntimeError(f"replica {self.number}: requests wait, none runs and none fits")
        else:
            self._idle = True

    def _plan_extend(self) -> list[tuple[_Job, int]]:
        """The jobs of an EXTEND and up to where each is computed. Their tokens are held and locked from now on."""
        planned, tokens, computing = list[tuple[_Job, int]](), 0.0, set[Key]()
        passed = list[_Job]()
        while self._budget > 0 and (self._prefilling or self._waiting):
            job = self._prefilling or self._waiting[0]
            prompt = job.request.turn.prompt_tokens
            if job is not self._prefilling:
                if len(planned) + len(self._decoding) >= self.config.max_running_requests:
                    break
                matched = min(self.cache.match(job.keys[:-1], job.lengths[:-1]), prompt - 1)
                if self._waits_for(job, computing):
                    passed.append(self._waiting.popleft())
                    continue
                if planned and tokens + prompt - matched > self.config.max_prefill_tokens:
                    break
                missing = self._first_missing(job)
                if not self.cache.take(job.keys, job.lengths):
                    break
                computing |= missing
                self._waiting.popleft()
                job.done = job.request.cached_tokens = matched
            self._prefilling = None
            end = int(min(prompt, job.done + self._budget))
            self._budget -= end - job.done
            tokens += end - job.done
            planned.append((job, end))
            if end < prompt:
                self._prefilling = job
                break
        self._waiting.extendleft(reversed(passed))
        return planned

    def _extend(self, planned: list[tuple[_Job, int]]) -> None:
        new = sum(end - job.done for job, end in planned)
        pairs = sum(attended_pairs(job.done, end) for job, end in planned)
        seconds = self.costs.extend_seconds(len(planned), new, pairs)
        self.busy_seconds += seconds
        self._began = None
        self._schedule(seconds, lambda: self._end_extend(planned))

    def _end_extend(self, planned: list[tuple[_Job, int]]) -> None:
        for job, end in planned:
            job.done = end
            if job is self._prefilling:
                continue
            request = job.request
            request.first_token, request.output_tokens = self._clock.now, 1
            self._on_first_token(request)
            if request.turn.answer.length == 1:
                self._end(job)
            else:
                self._order += 1
                self._context += request.turn.prompt_tokens + 1
                heapq.heappush(self._decoding, (self._decodes + request.turn.answer.length - 1, self._order, job))
        self._next_pass()

    def _end_decodes(self, passes: int) -> None:
        self.busy_seconds += self._decode_time(passes)
        self._began, self._budget = None, self._full_budget
        self._decodes += passes
        self._context += passes * len(self._decoding)
        while self._decoding and self._decoding[0][0] <= self._decodes:
            job = heapq.heappop(self._decoding)[2]
            turn = job.request.turn
            self._context -= turn.prompt_tokens + turn.answer.length
            self._end(job)
        self._next_pass()

    def _end(self, job: _Job) -> None:
        request = job.request
        request.ended, request.output_tokens = self._clock.now, request.turn.answer.length
        self.cache.release(job.keys)
        self._on_end(request)

    # --- how long, and what fits ---------------------------------------------------------------------------------------

    def _decode_time(self, passes: int) -> float:
        """Seconds of so many DECODEs from now on: each reads a token more of each request."""
        rows = len(self._decoding)
        growth = rows * self.costs.seconds_per_context_token
        return passes * self.costs.decode_seconds(rows, self._context) + growth * passes * (passes - 1) / 2

    def _passes_in(self, seconds: float) -> int:
        """How many of the DECODEs under way have begun after so many seconds; at least 1."""
        first = self.costs.decode_seconds(len(self._decoding), self._context)
        growth = len(self._decoding) * self.costs.seconds_per_context_token
        passes = max(1, int(seconds / first))
        if growth > 0:  # solves passes · first + growth · passes² / 2 = seconds
            passes = max(1, int((math.sqrt(first * first + 2 * growth * seconds) - first) / growth))
        while passes > 1 and self._decode_time(passes - 1) >= seconds:
            passes -= 1
        while self._decode_time(passes) < seconds:
            passes += 1
        return min(passes, self._decoding[0][0] - self._decodes)

    def _may_extend(self) -> bool:
        """Whether the next request may be admitted as far as rows and slots are concerned."""
        if self._prefilling is not None:
            return True
        job = self._waiting[0]
        room = self.cache.capacity - self.cache.locked_tokens
        return len(self._decoding) < self.config.max_running_requests and sum(job.lengths) <= room

    def _first_missing(self, job: _Job) -> set[Key]:
        """The run with which its missing tokens begin, if they are worth waiting for."""
        before = 0
        for key, length in zip(job.keys[:-1], job.lengths[:-1], strict=True):
            before += length
            if self.cache.match([key], [length]) < length - length % self.cache.block_size:
                return {key} if length >= WORTH_WAITING_FOR else set()
        return set()

    def _waits_for(self, job: _Job, computing: set[Key]) -> bool:
        """Whether this pass computes what the job needs next."""
        return bool(computing) and any(key in computing for key in job.keys[:-1])

    def _schedule(self, seconds: float, call: Callable[[], object]) -> None:
        """The replica's next event. The one before is void."""
        self._plan += 1
        plan = self._plan
        self._clock.after(seconds, lambda: call() if plan == self._plan else None)
