"""Scheduler: which requests make up the next forward pass, and what its result means for them."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from nanoinfer.batch import Batch
from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.config import EngineConfig
from nanoinfer.model.input_metadata import ForwardMode
from nanoinfer.requests.req import FinishReason, Req
from nanoinfer.scheduling.prefill_budget import PrefillBudget
from nanoinfer.scheduling.prefix_sharing import PassPrefixes
from nanoinfer.scheduling.retraction import NewTokenRatio, first_to_retract
from nanoinfer.scheduling.waiting_queue import WaitingQueue


class Blocked(NamedTuple):
    """Whom admission last ended at, for want of slots, and when: no use looking again before something changes."""

    req: Req
    when: tuple[int, int, int]
    covered: int  # tokens of its prefix that others keep locked: they take no room


class Scheduler:
    """Continuous batching: requests join by EXTEND passes, then all DECODE together, and leave with their last token.

    - **Which pass.** EXTEND goes first, as long as somebody can be admitted and the PrefillBudget lasts; then a DECODE of
      all that run. A prompt that the budget cuts is *half prefilled* (at most one is, `prefilling`): it is the last in its
      pass, gets no token yet, and is the first to go on after the next DECODE.
    - **Who is admitted.** Requests are considered in the WaitingQueue's order. One fits when its new tokens, and of the
      tokens that it and all running ones may still produce the NewTokenRatio's share, can be had: free slots plus cached
      tokens that nobody is using. At the first one that does not fit, admission ends.
    - **When memory runs short all the same.** Before a DECODE whose slots cannot be had, requests are retracted until they
      can (retraction.py: who, in which order, and why nobody is stuck).
    """

    def __init__(self, config: EngineConfig, cache: CacheManager, clock: Callable[[], float] = time.perf_counter):
        self.config, self.cache, self._clock = config, cache, clock
        self.waiting = WaitingQueue(config, cache.radix_cache)
        self.running: list[Req] = []  # all that hold slots, in order of admission
        self.prefilling: Req | None = None  # the one of them that is half prefilled
        self.planned: list[Req] = []  # who is in the pass being made: whom it concerns, should it fail
        self.new_token_ratio = NewTokenRatio(config.schedule_conservativeness)
        self.retractions = self.prompt_tokens = self.cached_tokens = 0  # since the start, for statistics
        self._budget = PrefillBudget(config.chunked_prefill_size, cache.page_size)
        self._ended = 0
        self._blocked: Blocked | None = None

    def add(self, req: Req) -> None:
        """Queue a request. The caller has checked that it fits the context and the pool."""
        self.waiting.add(req)

    def schedule(self) -> Batch | None:
        """The next pass, its slots allocated; None when there is nothing to do.

        When it raises, the requests in `planned` must be ended; the others are as before. RuntimeError when requests
        wait, none runs, and none fits: then slots or rows are held by nobody known here.
        """
        self.planned = []
        decoding = [req for req in self.running if req is not self.prefilling]
        if not decoding:
            self._budget.refill()
        self._plan_extend()
        if self.planned:
            return Batch.extend(self.planned, self.cache)
        if decoding:
            self.planned = self._make_room_for(decoding)
            self._budget.refill()
            return Batch.decode(self.planned, self.cache)
        if self.waiting or self.prefilling:
            raise RuntimeError(
                f"{len(self.waiting)} requests wait, none runs and none fits: {self.cache.obtainable_size()} of "
                f"{self.cache.token_to_kv_pool.size} slots and {self.cache.req_to_token_pool.available_size()} of "
                f"{self.cache.req_to_token_pool.size} rows can be had; something outside the engine holds the others"
            )
        self.new_token_ratio.reset()
        return None

    def process_batch_result(
        self, batch: Batch, token_ids: Sequence[int], logprobs: Sequence[dict[int, float] | None]
    ) -> None:
        """Append the tokens of `batch.sampled_reqs`; hand K/V to the radix cache after an EXTEND and at a request's end."""
        now = self._clock()
        for req, seq_len in zip(batch.reqs, batch.seq_lens.tolist(), strict=True):
            req.kv_len = seq_len
        batch.hand_out_prompt_logprobs()
        for req, token_id, entry in zip(batch.sampled_reqs, token_ids, logprobs, strict=True):
            if not req.num_output_tokens:
                req.first_token_time = now
            if entry is not None:
                req.output_logprobs.append(entry)
            req.append(token_id)
            if req.finished:
                req.finish_time = now
                self._ended += 1
                self.cache.release(req)
        if batch.forward_mode is ForwardMode.EXTEND:
            for req in batch.reqs:
                if not req.finished:
                    self.cache.cache_computed(req)
            self.prefilling = batch.cut_req
        self._forget_finished()

    def end(self, reqs: Sequence[Req], reason: FinishReason, error: BaseException | None = None) -> None:
        """End requests now, wherever they are; K/V they have computed goes to the tree, their other slots are freed.

        `error`: what made them end. Those that have ended already stay as they are.
        """
        ending = [req for req in reqs if not req.finished]
        for req in ending:
            self._ended += 1
            if req in self.waiting:
                self.waiting.remove(req)
            else:
                self.cache.release(req)
            req.finish_time = self._clock()
            req.end(reason, error)
        self._forget_finished()

    def abort(self, reqs: Sequence[Req]) -> None:
        """`end` them, because their caller no longer wants them."""
        self.end(reqs, FinishReason.ABORT)

    # --- EXTEND: who goes on, who is admitted ------------------------------------------------------------------------

    def _plan_extend(self) -> None:
        """Put into `planned` who is extended now, each with its prefix locked and its `chunk_end` set."""
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
        """Take requests off the queue, as long as they fit (see the class)."""
        rows = self.cache.req_to_token_pool.available_size()
        if not rows or not self.waiting or self._is_still_blocked():
            return
        self._blocked = None
        ratio, pass_prefixes = self.new_token_ratio.value, PassPrefixes(self.cache)
        new_tokens_left = self.config.max_prefill_tokens
        for req in self.planned:
            new_tokens_left -= req.chunk_end - req.kv_len
            pass_prefixes.add(req)
        promised = self._promised()
        for req in self.waiting.candidates():
            obtainable = self.cache.obtainable_size()
            self.cache.lock_prefix(req)
            need = self.cache.outstanding_size(req, ratio)
            if promised + need > self.cache.obtainable_size():
                newly_locked = obtainable - self.cache.obtainable_size()
                if not self.planned:
                    self._blocked = Blocked(req, self._moment(), covered=req.prefix_len - newly_locked)
                self.cache.unlock_prefix(req)
                return
            req.chunk_end = self._budget.chunk_end(req.prefix_len, req.num_tokens)
            new_tokens = req.chunk_end - req.prefix_len
            if not new_tokens or (self.planned and new_tokens > new_tokens_left):
                self.cache.unlock_prefix(req)
                return
            if pass_prefixes.worth_waiting_for(req):
                self.cache.unlock_prefix(req)
                if self.config.schedule_policy == "fcfs":
                    return  # those behind it wait with it: in order is in order
                continue
            self._take(req)
            pass_prefixes.add(req)
            promised += need
            new_tokens_left -= new_tokens
            rows -= 1
            if not rows or req.chunk_end < req.num_tokens:
                return

    def _take(self, req: Req) -> None:
        """`req` is admitted."""
        self.waiting.remove(req)
        self.planned.append(req)
        self.running.append(req)
        self.cache.count_hit(req)
        self._budget.spend(req.chunk_end - req.prefix_len)
        if not req.num_retractions:
            req.cached_tokens = req.prefix_len
            self.prompt_tokens += req.prompt_len
            self.cached_tokens += req.prefix_len

    def _promised(self) -> int:
        """Slots set aside for those that run, beside the ones they have."""
        return sum(self.cache.outstanding_size(req, self.new_token_ratio.value) for req in self.running)

    def _moment(self) -> tuple[int, int, int]:
        return self.waiting.arrivals, self._ended, self.cache.radix_cache.insertions

    def _is_still_blocked(self) -> bool:
        """True when the first in order did not fit, and nothing has arrived, ended or been cached that could change it.

        That the ratio falls may help as well; that costs no look-up in the tree.
        """
        if self._blocked is None or not self.running or self._blocked.when != self._moment():
            return False
        req, _, covered = self._blocked
        need = self.cache.outstanding_size(req, self.new_token_ratio.value) - covered
        return self._promised() + need > self.cache.obtainable_size()

    # --- DECODE: room for everybody, or for those who stay -----------------------------------------------------------

    def _make_room_for(self, decoding: list[Req]) -> list[Req]:
        """Those of `decoding` whose next slots can be had, after retracting as many requests as it takes."""
        staying, retracted = decoding, 0
        while len(self.running) > 1 and self.cache.decode_size(staying) > self.cache.obtainable_size():
            req = first_to_retract(self.running)
            self._retract(req)
            staying = [other for other in staying if other is not req]
            retracted += 1
        if retracted:
            self.new_token_ratio.rise(staying)
        else:
            self.new_token_ratio.decay()
        return staying

    def _retract(self, req: Req) -> None:
        self.running.remove(req)
        if req is self.prefilling:
            self.prefilling = None
        self.cache.release(req)
        req.num_retractions += 1
        self.retractions += 1
        self.waiting.put_back(req)

    def _forget_finished(self) -> None:
        self.running = [req for req in self.running if not req.finished]
        if self.prefilling is not None and self.prefilling.finished:
            self.prefilling = None
