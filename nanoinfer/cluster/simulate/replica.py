"""Replica: the engine's own scheduler, tree and pools. Only the model is simulated: a pass takes what PassCosts says."""

from collections.abc import Callable
from functools import lru_cache

from nanoinfer.cluster.costs import PassCosts, pass_of
from nanoinfer.cluster.simulate.clock import Clock
from nanoinfer.cluster.simulate.pools import make_cache
from nanoinfer.cluster.simulate.sessions import SimRequest
from nanoinfer.config import EngineConfig
from nanoinfer.requests.req import Req
from nanoinfer.requests.sampling_params import SamplingParams
from nanoinfer.scheduling.batch import Batch
from nanoinfer.scheduling.scheduler import Scheduler

Told = Callable[[SimRequest], object]


class Replica:
    """One simulated engine. `on_first_token` and `on_end` are told of requests when that happens.

    `submit` queues a request. While there is work, one pass follows the other: planned by the Scheduler, and ended so many
    seconds later. `after_pass` is called at the end of each, as AsyncEngine's `after_step` is.
    """

    def __init__(
        self, number: int, config: EngineConfig, costs: PassCosts, clock: Clock, on_first_token: Told, on_end: Told
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

    def not_from(self, router: int) -> list[Req]:
        """The requests that other routers have sent."""
        return [req for req, (request, _) in self._requests.items() if request.router != router]

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
