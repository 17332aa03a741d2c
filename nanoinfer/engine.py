"""Engine: requests in, tokens out, one step at a time."""

import logging
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import count

import numpy as np
import torch

from nanoinfer.batch import Batch
from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.config import EngineConfig
from nanoinfer.errors import EngineClosedError, InvalidRequestError, QueueFullError
from nanoinfer.model.input_metadata import ForwardMode
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.requests.deadlines import Deadlines
from nanoinfer.requests.outputs import RequestGroup, RequestOutput
from nanoinfer.requests.req import FinishReason, Req
from nanoinfer.requests.request_builder import Prompt, RequestBuilder
from nanoinfer.requests.sampling_params import SamplingParams
from nanoinfer.requests.tokenizer import Tokenizer
from nanoinfer.sampling.sampler import Sampler
from nanoinfer.scheduling.scheduler import Scheduler
from nanoinfer.signals import uninterrupted
from nanoinfer.stats import EngineStats, StepMeter

logger = logging.getLogger(__name__)


class Engine:
    """Serves one model to many requests at once. Single-threaded: nothing happens except inside `step()`.

    `clock`: seconds, for deadlines, latencies and step times.
    """

    def __init__(
        self,
        model_runner: ModelRunner,
        config: EngineConfig,
        vocab_size: int,
        eos_token_ids: Sequence[int] = (),
        tokenizer: Tokenizer | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.model_runner, self.config, self._clock = model_runner, config, clock
        self.builder = RequestBuilder(vocab_size, eos_token_ids, tokenizer, config.random_seed)
        self.radix_cache = RadixCache(
            model_runner.req_to_token_pool,
            model_runner.token_to_kv_pool,
            config.page_size,
            config.eviction_policy,
            config.disable_radix_cache,
        )
        self.cache = CacheManager(model_runner.req_to_token_pool, model_runner.token_to_kv_pool, self.radix_cache)
        self.scheduler = Scheduler(config, self.cache, clock)
        self.sampler = Sampler()
        self.last_batch: Batch | None = None  # the pass of the last step, to look at
        self._groups: dict[int, RequestGroup] = {}  # the unfinished ones
        self._undelivered: dict[int, RequestOutput] = {}
        self._ids = count()
        self._deadlines = Deadlines()
        self._closed = False
        self._meter = StepMeter()
        self._ends = dict.fromkeys(("finished", "aborted", "timed_out", "failed"), 0)

    # --- requests ------------------------------------------------------------------------------------------------

    def add_request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        extra_key: Hashable = None,
        name: str = "prompt",
        timeout_s: float | None = None,
    ) -> int:
        """Queue a prompt (text or token ids); returns the request id that outputs carry.

        `extra_key`: only requests with an equal one share cached prefixes. `name`: what error messages call the prompt.
        `timeout_s`: seconds from now after which those of its completions that have not ended do (FinishReason.TIMEOUT).
        Nothing has changed when it raises: InvalidRequestError (a ValueError) when the request can never be served,
        QueueFullError when too many wait, EngineClosedError after `shutdown`.
        """
        return self.submit(self.prepare(prompt, params, extra_key, name, timeout_s))

    def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        extra_key: Hashable = None,
        name: str = "prompt",
        timeout_s: float | None = None,
    ) -> RequestGroup:
        """`add_request` without queueing: check everything and make the request. For all-or-nothing batches."""
        params = SamplingParams() if params is None else params
        prompt_ids = self.builder.prompt_ids(prompt, name)
        self.builder.check_params(params, extra_key, name)
        self.builder.check_timeout(timeout_s, name)
        self.builder.check_context(prompt_ids, params, self.config.max_context_len, name)
        self._check_pool(prompt_ids, params, name)
        self._check_queue(params.n)
        request_id = next(self._ids)
        return RequestGroup(request_id, self.builder.build(request_id, prompt_ids, params, extra_key), timeout_s)

    def submit(self, group: RequestGroup) -> int:
        """Queue what `prepare` made; returns its request id. Errors as `submit_all`."""
        return self.submit_all([group])[0]

    @uninterrupted()
    def submit_all(self, groups: Sequence[RequestGroup]) -> list[int]:
        """Queue what `prepare` made, all or none; returns the request ids. QueueFullError or EngineClosedError: none."""
        self._check_queue(sum(len(group.reqs) for group in groups))
        now = self._clock()
        for group in groups:
            self._groups[group.request_id] = group
            if group.timeout_s is not None:
                self._deadlines.add(now + group.timeout_s, group.request_id)
            for req in group.reqs:
                req.arrival_time = now
                self.scheduler.add(req)
        self._deadlines.tidy(self._groups.keys())
        return [group.request_id for group in groups]

    @uninterrupted()
    def abort(self, request_id: int) -> RequestOutput | None:
        """End a request now, waiting, half prefilled, running or retracted; returns its last output.

        None when it is unknown or has ended and that has been delivered: a request may end just before its abort.
        """
        undelivered = self._undelivered.pop(request_id, None)
        ended = self._end([request_id], FinishReason.ABORT, "aborted")
        return ended[0] if ended else undelivered

    @uninterrupted()
    def abort_all(self, error: BaseException | None = None) -> list[RequestOutput]:
        """End every request now; returns their last outputs, and those that `step` has yet to deliver.

        `error`: what made it necessary, for the outputs to tell.
        """
        ended = self._end(self._groups, FinishReason.ABORT, "aborted" if error is None else "failed", error)
        return self._deliver(ended)

    def shutdown(self) -> list[RequestOutput]:
        """End for good: `abort_all`, every slot back to the pool, and later requests are refused with EngineClosedError.

        May be called again; then there is nothing left to do.
        """
        self._closed = True
        outputs = self.abort_all()
        self.flush_cache()
        return outputs

    def has_unfinished(self) -> bool:
        """True while `step()` has something to do or to deliver."""
        return bool(self._groups or self._undelivered)

    def is_unfinished(self, request_id: int) -> bool:
        """True while this request waits or runs."""
        return request_id in self._groups

    # --- the step ------------------------------------------------------------------------------------------------

    def step(self) -> list[RequestOutput]:
        """One forward pass: schedule → forward → sample → process. Returns the state of every request with a new token
        and of those that ended; a prompt of which only a piece was computed is not among them.

        When it raises, the requests of the pass are aborted and their slots freed; the others are untouched. The next
        step tells of the aborted ones, and what was raised (`RequestOutput.error`). Requests whose `timeout_s` has passed
        end before the pass; one that is running is not interrupted.

        Ctrl-C interrupts the forward pass, with the same consequences; never the bookkeeping around it.
        """
        started, retracted = self._clock(), self.scheduler.retractions
        with uninterrupted():
            self.deliver_later(self._end(self._deadlines.pop_due(started), FinishReason.TIMEOUT, "timed_out"))
        try:
            with uninterrupted():
                batch = self.last_batch = self.scheduler.schedule()
            if batch is None:
                return self._deliver()
            logits, _ = self.model_runner.forward(batch, batch.forward_mode, batch.return_normalized_logprob)
            token_ids, logprobs = self._sample(batch.take_logits(logits), batch.sampled_reqs)
            with uninterrupted():
                self.scheduler.process_batch_result(batch, token_ids, logprobs)
                # Kept before anything below can raise (a log handler may): these tokens are told in any case.
                self.deliver_later(self._outputs(batch.sampled_reqs))
        except BaseException as error:
            with uninterrupted():
                failed = dict.fromkeys(req.request_id for req in self.scheduler.planned)
                self.deliver_later(self._end(failed, FinishReason.ABORT, "failed", error))
            raise
        self._meter.add(batch.forward_mode is ForwardMode.EXTEND, len(batch.sampled_reqs), self._clock() - started)
        self._log(batch, self.scheduler.retractions - retracted, self._clock() - started)
        return self._deliver()

    def deliver_later(self, outputs: Sequence[RequestOutput]) -> None:
        """Give back outputs of `step()` that were somebody else's: the next `step()` returns the last of each request."""
        self._undelivered.update((output.request_id, output) for output in outputs)

    # --- looking at it -------------------------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """Where requests and slots are now, sums since the start, and recent speed."""
        pool, tree, scheduler = self.cache.token_to_kv_pool, self.radix_cache, self.scheduler
        return EngineStats(
            waiting=len(scheduler.waiting),
            running=len(scheduler.running),
            total_slots=pool.size,
            free_slots=pool.available_size(),
            evictable_slots=tree.evictable_size(),
            protected_slots=tree.protected_size(),
            request_slots=sum(req.allocated_len - req.tree_len for req in scheduler.running),
            hit_rate=scheduler.cached_tokens / scheduler.prompt_tokens if scheduler.prompt_tokens else 0.0,
            extend_steps=self._meter.extend_steps,
            decode_steps=self._meter.decode_steps,
            **self._ends,
            retractions=scheduler.retractions,
            evicted_tokens=self.cache.evicted_tokens,
            prompt_tokens=scheduler.prompt_tokens,
            cached_tokens=scheduler.cached_tokens,
            output_tokens=self._meter.output_tokens,
            new_token_ratio=scheduler.new_token_ratio.value,
            **self._meter.recent(),
        )

    def check_integrity(self) -> None:
        """RuntimeError unless every slot and row has exactly one owner: `free + tree + requests == N`."""
        self.cache.check_integrity(self.scheduler.running)

    @uninterrupted()
    def flush_cache(self) -> int:
        """Free every cached token that no running request relies on; returns how many."""
        return self.radix_cache.evict(self.radix_cache.evictable_size())

    # --- how it works --------------------------------------------------------------------------------------------

    def _sample(self, logits: torch.Tensor, reqs: Sequence[Req]) -> tuple[list[int], list[dict[int, float] | None]]:
        """Next tokens of `reqs` (none in a pass over a piece of a prompt) and their log-probabilities, where wanted."""
        if not reqs:
            return [], []
        token_ids = self.sampler.sample(logits, reqs)
        return token_ids.tolist(), self.sampler.logprobs(logits, token_ids, reqs)

    def _end(
        self, request_ids: Iterable[int], reason: FinishReason, counted_as: str, error: BaseException | None = None
    ) -> list[RequestOutput]:
        """End those of the requests that have not ended; their last outputs."""
        groups = [self._groups.pop(request_id) for request_id in list(request_ids) if request_id in self._groups]
        for group in groups:
            self._ends["finished" if group.finished else counted_as] += 1
        self.scheduler.end([req for group in groups for req in group.reqs], reason, error)
        return [group.output() for group in groups]

    def _check_queue(self, more: int) -> None:
        if self._closed:
            raise EngineClosedError("this engine has been shut down; it takes no more requests")
        waiting, limit = len(self.scheduler.waiting), self.config.max_queue
        if limit is not None and waiting + more > limit:
            raise QueueFullError(f"{waiting} requests wait and {more} more arrive: must not exceed max_queue={limit}")

    def _check_pool(self, prompt_ids: np.ndarray, params: SamplingParams, name: str) -> None:
        slots = self.cache.whole_pages(len(prompt_ids) + params.max_new_tokens - 1)
        if slots > self.cache.token_to_kv_pool.size:
            raise InvalidRequestError(
                f"{name}: {len(prompt_ids)} prompt tokens + max_new_tokens={params.max_new_tokens} need {slots} slots: "
                f"must not exceed max_total_tokens={self.cache.token_to_kv_pool.size}"
            )

    def _log(self, batch: Batch, retracted: int, seconds: float) -> None:
        """The line that `stats.py` describes."""
        if logger.isEnabledFor(logging.INFO):
            logger.info(
                "step=%d mode=%s reqs=%d tokens=%d running=%d waiting=%d free=%d evictable=%d protected=%d retracted=%d"
                " ms=%.1f",
                self._meter.extend_steps + self._meter.decode_steps,
                batch.forward_mode.name,
                len(batch.reqs),
                len(batch.input_ids),
                len(self.scheduler.running),
                len(self.scheduler.waiting),
                self.cache.token_to_kv_pool.available_size(),
                self.radix_cache.evictable_size(),
                self.radix_cache.protected_size(),
                retracted,
                1e3 * seconds,
            )

    def _outputs(self, reqs: Sequence[Req]) -> list[RequestOutput]:
        groups = [self._groups[request_id] for request_id in dict.fromkeys(req.request_id for req in reqs)]
        for group in groups:
            if group.finished:
                del self._groups[group.request_id]
                self._ends["finished"] += 1
        return [group.output() for group in groups]

    def _deliver(self, outputs: Sequence[RequestOutput] = ()) -> list[RequestOutput]:
        """`outputs` and those left for later, the latest of each request."""
        self.deliver_later(outputs)
        delivered, self._undelivered = list(self._undelivered.values()), {}
        return delivered
