"""Replica: the engine's own scheduler, tree and pools. Only the model is simulated: a pass takes what PassCosts says, by a
Clock of simulated time, and the pools keep no K/V."""

import heapq
import math
from collections.abc import Callable
from functools import lru_cache
from itertools import count

import torch

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.kv_storage import KVStorage
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.cluster.costs import PassCosts, pass_of
from nanoinfer.cluster.simulate.sessions import SimRequest
from nanoinfer.config import EngineConfig
from nanoinfer.registry import KV_STORAGES
from nanoinfer.requests.req import Req
from nanoinfer.sampling_params import SamplingParams
from nanoinfer.scheduler.batch import Batch
from nanoinfer.scheduler.scheduler import Scheduler

Hook = Callable[[SimRequest], object]


class Clock:
    """Seconds since the start, and a heap of calls that are due. Calls at the same time happen in the order of `at`.

    Nothing waits: `run` makes one call after another and sets `now` to when it was due. A clock that is called returns
    `now`, so it can be given wherever the engine takes a clock.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._calls: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()

    def __call__(self) -> float:
        return self.now

    def at(self, seconds: float, call: Callable[[], object]) -> None:
        """Have `call` made at this time. ValueError if that is past, or no time."""
        if not self.now <= seconds < math.inf:
            raise ValueError(f"seconds={seconds!r}: must be a time from now ({self.now}) on")
        heapq.heappush(self._calls, (seconds, next(self._order), call))

    def after(self, seconds: float, call: Callable[[], object]) -> None:
        """Have `call` made in so many seconds, at least 0."""
        self.at(self.now + seconds, call)

    def run(self, until: float = math.inf) -> None:
        """Make all calls that are due before `until`, including those that are added meanwhile."""
        while self._calls and self._calls[0][0] < until:
            self.now, _, call = heapq.heappop(self._calls)
            call()


class NoStorage(KVStorage):
    """Keeps nothing. Writing raises a RuntimeError, because no model runs in a simulation."""

    def __init__(
        self, size: int, dtype: torch.dtype, head_num: int, head_dim: int, layer_num: int, device: torch.device
    ):
        self._token = torch.zeros((head_num, head_dim), dtype=dtype, device=device)

    @staticmethod
    def bytes_per_token(dtype: torch.dtype, head_num: int, head_dim: int, layer_num: int) -> int:
        """Nothing."""
        return 0

    def write(self, layer_id: int, slots: torch.Tensor | slice, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Raise a RuntimeError."""
        raise RuntimeError("this pool has no storage for K/V: it is part of a simulation")

    def read(self, layer_id: int, slots: torch.Tensor | slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Zeros, of the shape that KVStorage promises. They take no memory of their own."""
        count = len(range(*slots.indices(2**31 - 1))) if isinstance(slots, slice) else len(slots)
        zeros = self._token.expand(count, *self._token.shape)
        return zeros, zeros


KV_STORAGES["none"] = NoStorage


def make_pools(config: EngineConfig) -> tuple[ReqToTokenPool, TokenToKVPool]:
    """Rows and slots of an engine with these settings."""
    page = config.page_size
    rows = ReqToTokenPool(config.max_running_requests, -(-config.max_context_len // page) * page)
    return rows, TokenToKVPool(config.max_total_tokens, torch.float32, 1, 1, 1, page_size=page, kv_cache_dtype="none")


def make_cache(config: EngineConfig) -> CacheManager:
    """Rows, slots and tree of one simulated engine with these settings."""
    rows, slots = make_pools(config)
    tree = RadixCache(rows, slots, config.page_size, config.eviction_policy, config.disable_radix_cache)
    return CacheManager(rows, slots, tree)


class Replica:
    """One simulated engine. `on_first_token` and `on_end` are told of requests when that happens.

    `submit` queues a request. While there is work, one pass follows the other: planned by the Scheduler, and ended so many
    seconds later. `after_pass` is called at the end of each, as AsyncEngine's `after_step` is.
    """

    def __init__(
        self, number: int, config: EngineConfig, costs: PassCosts, clock: Clock, on_first_token: Hook, on_end: Hook
    ):
        self.number, self._config, self._costs, self._clock = number, config, costs, clock
        self.cache = make_cache(config)
        self.scheduler = Scheduler(config, self.cache, clock)
        self.after_pass: Callable[[], object] = lambda: None
        self._on_first_token, self._on_end = on_first_token, on_end
        self._requests: dict[Req, tuple[SimRequest, list[int]]] = {}  # with what the model will answer
        self._in_pass = False

    def submit(self, request: SimRequest) -> None:
        """Queue a request. ValueError if it can never fit, as from an engine."""
        turn = request.turn
        total = turn.prompt_tokens + turn.answer.length
        limit = min(self._config.max_context_len, self._config.max_total_tokens)
        if total > limit:
            raise ValueError(f"request {request.id}: has {total} tokens: must not exceed {limit}")
        req = Req(request.id, request.prompt_ids(), greedy(turn.answer.length))
        req.arrival_time = self._clock.now
        self._requests[req] = request, turn.answer.tokens().tolist()
        self.scheduler.add(req)
        if not self._in_pass:
            self._in_pass = True
            self._clock.after(0.0, self._start_pass)  # what arrives at the same moment is in the same pass

    def _start_pass(self) -> None:
        batch = self.scheduler.schedule()
        self._in_pass = batch is not None
        if batch is not None:
            self._clock.after(self._costs.seconds(pass_of(batch)), lambda: self._end_pass(batch))

    def _end_pass(self, batch: Batch) -> None:
        sampled = batch.sampled_reqs
        tokens = [self._requests[req][1][req.num_output_tokens] for req in sampled]
        self.scheduler.process_batch_result(batch, tokens, [None] * len(tokens))
        for req in sampled:
            request, _ = self._requests[req]
            request.output_tokens = req.num_output_tokens
            if req.num_output_tokens == 1:
                request.first_token, request.cached_tokens = self._clock.now, req.cached_tokens
                self._on_first_token(request)
            if req.finished:
                del self._requests[req]
                self._on_end(request)
        self.after_pass()
        self._start_pass()


@lru_cache(maxsize=100_000)
def greedy(max_new_tokens: int) -> SamplingParams:
    """The parameters of a request for so many tokens."""
    return SamplingParams(max_new_tokens=max_new_tokens, temperature=0, ignore_eos=True)
