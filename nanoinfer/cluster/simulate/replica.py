"""Replica: the engine's own scheduler, tree and pools. Only the model is simulated: a pass takes what PassCosts says."""

from collections.abc import Callable
from functools import lru_cache

from nanoinfer.cluster.costs import PassCosts, attended_pairs
from nanoinfer.cluster.simulate.clock import Clock
from nanoinfer.cluster.simulate.pools import make_cache
from nanoinfer.cluster.simulate.request import SimRequest
from nanoinfer.cluster.simulate.routing import Told
from nanoinfer.config import EngineConfig
from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.requests.req import Req
from nanoinfer.requests.sampling_params import SamplingParams
from nanoinfer.scheduling.batch import Batch
from nanoinfer.scheduling.scheduler import Scheduler


class Replica:
    """One simulated engine. `on_first_token` and `on_end` are told of requests when that happens.

    `submit` queues a request. While there is work, one pass follows the other: planned by the Scheduler, and ended so many
    seconds later. `after_pass` is called at the end of each, as AsyncEngine's `after_step` is.
    """

    def __init__(
        self,
        number: int,
        config: EngineConfig,
        costs: PassCosts,
        clock: Clock,
        on_first_token: Told,
        on_end: Told,
        **tree_options: object,
    ):
        self.number, self.config, self.costs, self._clock = number, config, costs, clock
        self.cache = make_cache(config, **tree_options)
        self.scheduler = Scheduler(config, self.cache, clock)
        self.after_pass: Callable[[], object] | None = None
        self.busy_seconds = 0.0
        self.passes = 0
        self._on_first_token, self._on_end = on_first_token, on_end
        self._requests: dict[Req, SimRequest] = {}
        self._in_pass = False

    def submit(self, request: SimRequest) -> None:
        """Queue a request. ValueError if it can never fit, as from an engine."""
        turn = request.turn
        total = turn.prompt_tokens + turn.answer.length
        limit = min(self.config.max_context_len, self.config.max_total_tokens)
        if total > limit:
            raise ValueError(
                f"request {request.id}: {turn.prompt_tokens} prompt tokens + {turn.answer.length} output tokens: must not "
                f"exceed {limit}, the smaller one of max_context_len and max_total_tokens"
            )
        req = Req(request.id, request.token_ids, greedy(turn.answer.length))
        req.arrival_time = self._clock.now
        self._requests[req] = request
        self.scheduler.add(req)
        if not self._in_pass:
            self._in_pass = True
            self._clock.after(0.0, self._start_pass)  # what arrives at the same moment is in the same pass

    @property
    def open_requests(self) -> int:
        """How many requests have not ended."""
        return len(self._requests)

    def router_of(self, req: Req) -> int:
        """The number of the router that has sent a request."""
        return self._requests[req].router

    def _start_pass(self) -> None:
        batch = self.scheduler.schedule()
        self._in_pass = batch is not None
        if batch is None:
            return
        seconds = pass_seconds(batch, self.costs)
        self.busy_seconds += seconds
        self.passes += 1
        self._clock.after(seconds, lambda: self._end_pass(batch))

    def _end_pass(self, batch: Batch) -> None:
        sampled = batch.sampled_reqs
        tokens = [self._requests[req].answer_ids[req.num_output_tokens] for req in sampled]
        self.scheduler.process_batch_result(batch, tokens, [None] * len(tokens))
        for req in sampled:
            request = self._requests[req]
            request.output_tokens = req.num_output_tokens
            if req.num_output_tokens == 1:
                request.first_token, request.cached_tokens = self._clock.now, req.cached_tokens
                self._on_first_token(request)
            if req.finished:
                del self._requests[req]
                request.ended = self._clock.now
                request.forget_tokens()
                self._on_end(request)
        if self.after_pass is not None:
            self.after_pass()
        self._start_pass()


def pass_seconds(batch: Batch, costs: PassCosts) -> float:
    """How long a pass of this batch takes."""
    seq_lens = batch.seq_lens.tolist()
    if batch.forward_mode is ForwardMode.DECODE:
        return costs.decode_seconds(len(seq_lens), sum(seq_lens))
    assert batch.prefix_lens is not None
    spans = list(zip(batch.prefix_lens.tolist(), seq_lens, strict=True))
    pairs = sum(attended_pairs(start, end) for start, end in spans)
    return costs.extend_seconds(len(spans), sum(seq_lens) - sum(start for start, _ in spans), pairs)


@lru_cache(maxsize=100_000)
def greedy(max_new_tokens: int) -> SamplingParams:
    """The parameters of a request for so many tokens."""
    return SamplingParams(max_new_tokens=max_new_tokens, temperature=0, ignore_eos=True)
