"""Scheduler: decides which requests are in the next pass, and processes the pass's result."""

import time
from collections.abc import Callable, Iterable, Sequence

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.config import EngineConfig
from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.model.lora.pool import AdapterPool
from nanoinfer.outputs import FinishReason
from nanoinfer.requests.req import Req
from nanoinfer.scheduler.admission import Admission, PrefillBudget, PrefixLock, Verdict
from nanoinfer.scheduler.batch import Batch
from nanoinfer.scheduler.prefetch_gate import PrefetchGate
from nanoinfer.scheduler.retraction import NewTokenRatio, first_to_retract
from nanoinfer.scheduler.waiting_queue import WaitingQueue


class Scheduler:
    """Continuous batching: requests join in EXTEND passes, then all DECODE together, and leave with their last token.

    - **Which pass.** EXTEND comes first, as long as a request can be admitted and the PrefillBudget lasts. Then all
      running requests DECODE. A prompt that exceeds the budget is computed chunk by chunk (at most one at a time, in
      `prefilling`): it is the last in its pass, gets no token yet, and is the first to continue after the next DECODE.
    - **Which requests are admitted.** They are considered in the WaitingQueue's order. A request fits if there are slots
      for its new tokens, and for the NewTokenRatio's share of the tokens that it and all running requests may still
      produce. Free slots count, and so do those of cached tokens that no request uses. Admission ends at the first
      request that does not fit.
    - **When memory runs short all the same.** If there are too few slots for a DECODE, requests are retracted until
      there are enough (retraction.py says which ones, in which order, and why every request makes progress).
    - **Adapters.** A request is only admitted when its adapter is on the device. While it waits for that, requests behind
      it may go first, within the WaitingQueue's bound, whatever the policy.
    - **Pause.** A paused request gives back its row and slots like a retracted one, and is not considered again until
      `resume`.
    """

    def __init__(
        self,
        config: EngineConfig,
        cache: CacheManager,
        clock: Callable[[], float] = time.perf_counter,
        adapters: AdapterPool | None = None,
    ):
        self.config, self.cache, self._clock = config, cache, clock
        self.new_token_ratio = NewTokenRatio(config.schedule_conservativeness)
        self.retractions = self.prompt_tokens = self.cached_tokens = self.output_tokens = 0  # since the start
        self.drafted_tokens = self.accepted_tokens = 0  # likewise; 0 without a drafter (speculative/scheduler.py)
        self._budget = PrefillBudget(config.chunked_prefill_size, cache.page_size)
        self.prefetch_gate = PrefetchGate(adapters)
        self.clear()

    def clear(self) -> None:
        """Forget all requests, whatever their state; pools and tree are not touched."""
        self.waiting = WaitingQueue(self.config, self.cache.radix_cache)
        self.running: list[Req] = []  # all requests that hold slots, in order of admission
        self.prefilling: Req | None = None  # the one of them whose prompt is only partly computed, if any
        self.paused: set[Req] = set()
        self.planned: list[Req] = []  # the requests of the pass being planned or run; they end if it fails
        self.fetch_failure: BaseException | None = None  # why an adapter that `planned` need could not be fetched
        self.passes_left = 0  # of a group of decode passes; always 0 unless num_scheduler_steps > 1 (multi_step.py)

    def add(self, req: Req) -> None:
        """Queue a request. The caller has checked that it fits the context and the pool."""
        self.waiting.add(req)

    def schedule(self) -> Batch | None:
        """Plan the next pass and allocate its slots; None when there is nothing to do, or only something to wait for.

        It raises what made fetching an adapter fail (`fetch_failure`): then the caller must end the requests in
        `planned`, and the others are as before. RuntimeError when requests wait, none is running, and none fits: then
        something outside the engine holds slots or rows.
        """
        self.planned = []
        if (failure := self.prefetch_gate.failure(self.waiting)) is not None:
            self.planned, self.fetch_failure = failure
            raise self.fetch_failure
        decoding = [req for req in self.running if req is not self.prefilling]
        if not decoding:
            self._budget.refill()
        self._plan_extend()
        if not self.planned and not decoding and self.prefetch_gate.fetching:
            # Not a subclass's: nothing is planned.
            return Scheduler.schedule(self) if self.prefetch_gate.wait() else None
        if self.planned:
            return Batch.extend(self.planned, self.cache)
        if decoding:
            self.planned = self._make_room_for(decoding)
            self._budget.refill()
            if not self.planned:  # all of them gave way to a prompt that is computed in chunks
                return Scheduler.schedule(self)
            return self._decode(self.planned)
        if self.waiting or self.prefilling:
            raise RuntimeError(
                f"{len(self.waiting)} requests wait, none runs and none fits: {self.cache.obtainable_size()} of "
                f"{self.cache.token_to_kv_pool.size} slots and {self.cache.req_to_token_pool.available_size()} of "
                f"{self.cache.req_to_token_pool.size} rows are available; something outside the engine holds the others"
            )
        self.new_token_ratio.reset()
        return None

    def process_batch_result(
        self, batch: Batch, token_ids: Sequence[int], logprobs: Sequence[dict[int, float] | None]
    ) -> None:
        """Append the sampled tokens to `batch.sampled_reqs`. After an EXTEND, and when a request ends, its K/V goes to the
        radix cache.
        """
        if batch.chunked_req is not None:
            batch.chunked_req.kv_len = batch.chunked_req.chunk_end
        self._append(zip(batch.sampled_reqs, token_ids, logprobs, strict=True))
        if batch.forward_mode is ForwardMode.EXTEND:
            for req in batch.reqs:
                if not req.finished:
                    self.cache.cache_computed(req)
            self.prefilling = batch.chunked_req
        self._forget_finished()

    def _append(self, sampled: Iterable[tuple[Req, int, dict[int, float] | None]]) -> None:
        """Append tokens with their log-probabilities to their requests, in order, each until it ends. The pass has computed
        the K/V of every token before them."""
        now = self._clock()
        for req, token_id, entry in sampled:
            if req.finished:
                continue
            before = req.num_tokens
            if not req.num_output_tokens:
                req.first_token_time = now
            if entry is not None:
                req.output_logprobs.append(entry)
            req.kv_len = req.num_tokens
            req.append(token_id)
            self.output_tokens += req.num_tokens - before  # none if there was no token to choose
            if req.finished:
                req.finish_time = now
                self.cache.release(req)

    def end(self, reqs: Sequence[Req], reason: FinishReason, error: BaseException | None = None) -> None:
        """End requests now, whatever their state. Their computed K/V goes to the tree; their other slots are freed.

        `error`: what made them end. Requests that have already ended stay as they are.
        """
        for req in reqs:
            if req.finished:
                continue
            self._take_back(req)
            req.finish_time = self._clock()
            req.end(reason, error)
        self._forget_finished()

    def pause(self, req: Req) -> None:
        """Leave an unfinished request out of passes until `resume`. Its computed tokens stay in the tree as long as there
        is room.
        """
        if req not in self.paused:
            self._take_back(req)
            self.paused.add(req)

    def resume(self, req: Req) -> None:
        """Queue a paused request again: in front of the others if it had been admitted before, else behind them."""
        if req in self.paused:
            self.paused.remove(req)
            (self.waiting.put_back if req.num_admissions else self.waiting.add)(req)

    # --- EXTEND: which request continues, which are admitted ---------------------------------------------------------

    def _plan_extend(self) -> None:
        """Fill `planned` with the requests to extend now, each with its prefix locked and its `chunk_end` set."""
        req = self.prefilling
        if req is not None:
            req.chunk_end = self._budget.chunk_end(req.kv_len, req.num_tokens)
            need = self.cache.whole_pages(req.chunk_end) - req.allocated_len
            if req.chunk_end == req.kv_len or need > self.cache.obtainable_size():
                return
            self._budget.spend(req.chunk_end - req.kv_len)
            self.planned.append(req)
            if req.chunk_end < req.num_tokens:
                return
        self._admit()

    def _admit(self) -> None:
        """Take requests off the queue as long as they fit (the class says when they do)."""
        if not self.waiting:
            return
        ratio = self.new_token_ratio.value
        admission = Admission(self.config, self.cache, self._budget, ratio, self.running, self.planned)
        if not admission.open:
            return
        self.prefetch_gate.begin(self.running)
        for req in self.waiting.candidates():
            if not self.prefetch_gate.has(req):
                continue  # requests behind it may go first
            with PrefixLock(self.cache, req) as prefix:
                verdict = admission.verdict(req)
                if verdict is Verdict.ADMIT:
                    prefix.keep()
                    self._take(req)
                    self.prefetch_gate.use(req)
                    admission.add(req)
            if verdict is Verdict.WAIT_FOR_PREFIX and not self.waiting.in_order:
                continue  # requests behind it may go first
            if verdict is not Verdict.ADMIT or not admission.open:
                return

    def _take(self, req: Req) -> None:
        """Admit `req`: it leaves the queue and joins the pass."""
        self.waiting.remove(req)
        self.planned.append(req)
        self.running.append(req)
        self.cache.count_hit(req)
        self._budget.spend(req.chunk_end - req.prefix_len)
        if not req.num_admissions:
            req.cached_tokens = min(req.prefix_len, req.prompt_len)  # it may have arrived with a part of its output
            self.prompt_tokens += req.prompt_len
            self.cached_tokens += req.cached_tokens
        req.num_admissions += 1

    def _decode(self, reqs: list[Req]) -> Batch:
        """The pass in which running requests, for whose next tokens there is room, get them."""
        return Batch.decode(reqs, self.cache)

    # --- DECODE: make room for all running requests, or for those that stay ------------------------------------------

    def _make_room_for(self, decoding: list[Req]) -> list[Req]:
        """Retract requests until there are slots for the others' next tokens; returns those of `decoding` that stay."""
        staying, retracted = decoding, 0
        while len(self.running) > 1 and self.cache.decode_size(staying) > self.cache.obtainable_size():
            req = first_to_retract(self.running)
            self._retract(req)
            staying = [other for other in staying if other is not req]
            retracted += 1
        if not retracted:
            self.new_token_ratio.decay()
        elif staying:
            self.new_token_ratio.rise(staying)
        return staying

    def _retract(self, req: Req) -> None:
        self._take_back(req)
        req.num_retractions += 1
        self.retractions += 1
        self.waiting.put_back(req)

    def _take_back(self, req: Req) -> None:
        """Remove a request from the queue, from the paused ones, or from the running ones with its row and slots."""
        if req in self.waiting:
            self.waiting.remove(req)
        elif req in self.paused:
            self.paused.remove(req)
        else:
            self.cache.release(req)
            self.running.remove(req)
            if req is self.prefilling:
                self.prefilling = None

    def _forget_finished(self) -> None:
        self.running = [req for req in self.running if not req.finished]
        if self.prefilling is not None and self.prefilling.finished:
            self.prefilling = None
