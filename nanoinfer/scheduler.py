"""Scheduler: which requests make up the next forward pass, and what its result means for them."""

import time
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from itertools import islice

import numpy as np

from nanoinfer.batch import Batch
from nanoinfer.cache_manager import CacheManager
from nanoinfer.config import EngineConfig
from nanoinfer.input_metadata import ForwardMode
from nanoinfer.radix_cache import TreeNode, common_prefix_len
from nanoinfer.req import FinishReason, Req
from nanoinfer.schedule_policy import SCHEDULE_POLICIES

# A waiting request that would compute at least so many tokens which another one computes in this very pass waits one
# step and finds them in the tree. For fewer, a pass with more requests in it is worth more than the tokens saved.
WORTH_WAITING_FOR = 32


class Scheduler:
    """Continuous batching: requests join by an EXTEND pass and leave with their last token; in between all DECODE.

    A waiting request is admitted when the slots it may need until its end can be had for certain, beside those that the
    running requests may still need: free slots plus cached tokens that nobody is using. So a running request never finds
    the pool empty. Requests are considered in the policy's order; at the first one that does not fit, admission ends.
    """

    def __init__(self, config: EngineConfig, cache: CacheManager):
        self.config, self.cache = config, cache
        self.waiting: OrderedDict[Req, None] = OrderedDict()  # in order of arrival
        self.running: list[Req] = []
        self._policy = SCHEDULE_POLICIES[config.schedule_policy]
        self._rng = np.random.default_rng(config.random_seed)
        self._arrivals = 0
        self._order: list[Req] = []
        self._order_made_for: tuple[int, int] | None = None
        self._ended = 0
        self._blocked_at: tuple[int, int, int] | None = None

    def add(self, req: Req) -> None:
        """Queue a request. The caller has checked that it fits the context and the pool."""
        self.waiting[req] = None
        self._arrivals += 1

    def schedule(self) -> Batch | None:
        """The next pass: EXTEND of what can be admitted, else DECODE of all that run, else None. Allocates its slots.

        RuntimeError when requests wait, none runs, and none fits: then slots or rows are held by nobody known here.
        """
        admitted = self._admit()
        if admitted:
            self.running += admitted
            return Batch.extend(admitted, self.cache)
        if self.running:
            return Batch.decode(self.running, self.cache)
        if self.waiting:
            raise RuntimeError(
                f"{len(self.waiting)} requests wait, none runs and none fits: {self.cache.obtainable_size()} of "
                f"{self.cache.token_to_kv_pool.size} slots and {self.cache.req_to_token_pool.available_size()} of "
                f"{self.cache.req_to_token_pool.size} rows can be had; something outside the engine holds the others"
            )
        return None

    def process_batch_result(
        self, batch: Batch, token_ids: Sequence[int], logprobs: Sequence[dict[int, float] | None]
    ) -> None:
        """Append each request's token; hand K/V to the radix cache after an EXTEND and at the end of a request."""
        now = time.perf_counter()
        if batch.prompt_logprobs is not None:
            self._keep_prompt_logprobs(batch)
        for req, token_id, entry in zip(batch.reqs, token_ids, logprobs, strict=True):
            req.kv_len = req.num_tokens
            if not req.num_output_tokens:
                req.first_token_time = now
            if entry is not None:
                req.output_logprobs.append(entry)
            req.append(token_id)
            if req.finished:
                req.finish_time = now
                self._ended += 1
                self.cache.release(req)
            elif batch.forward_mode is ForwardMode.EXTEND:
                self.cache.cache_computed(req)
        self._forget_finished()

    def abort(self, reqs: Sequence[Req]) -> None:
        """End requests now, wherever they are; K/V they have computed goes to the tree, their other slots are freed."""
        for req in reqs:
            if req.finished:
                continue
            self._ended += 1
            if req in self.waiting:
                del self.waiting[req]
            else:
                self.cache.release(req)
            req.finish(FinishReason.ABORT)
            req.finish_time = time.perf_counter()
        self._forget_finished()

    def _admit(self) -> list[Req]:
        """Take requests off the queue, each with its prefix locked, as long as they fit (see the class).

        Once the first in order did not fit, only an arrival, an end or a change in the tree can help: until then the
        question is not asked again.
        """
        admitted: list[Req] = []
        rows = self.cache.req_to_token_pool.available_size()
        state = (self._arrivals, self._ended, self.cache.radix_cache.version)
        if not self.waiting or not rows or (self.running and state == self._blocked_at):
            return admitted
        budget = self.config.max_prefill_tokens
        promised = sum(self.cache.outstanding_size(req) for req in self.running)
        computed_here: dict[tuple[TreeNode | None, Hashable, bytes], Req] = {}
        for req in self._in_order():
            if req not in self.waiting:
                continue
            self.cache.lock_prefix(req)
            new_tokens = req.num_tokens - req.prefix_len
            need = self.cache.outstanding_size(req)
            if promised + need > self.cache.obtainable_size() or (admitted and new_tokens > budget):
                self.cache.unlock_prefix(req)
                self._blocked_at = None if admitted else state
                break
            if self._shares_with(req, computed_here):
                self.cache.unlock_prefix(req)
                continue
            req.cached_tokens = req.prefix_len
            del self.waiting[req]
            admitted.append(req)
            promised += need
            budget -= new_tokens
            if len(admitted) == rows:
                break
        return admitted

    def _shares_with(self, req: Req, computed_here: dict[tuple[TreeNode | None, Hashable, bytes], Req]) -> bool:
        """True when one of the requests in `computed_here` computes enough of what `req` would compute (else adds it).

        Candidates have the same place in the tree and the same next page; one look-up finds the first of them.
        """
        page = self.cache.page_size
        fresh = req.reusable_tokens[req.prefix_len :]
        if self.cache.radix_cache.disable or len(fresh) < WORTH_WAITING_FOR:
            return False
        key = (req.last_node, req.extra_key, fresh[:page].tobytes())
        other = computed_here.setdefault(key, req)
        shared = common_prefix_len(fresh, other.reusable_tokens[other.prefix_len :])
        return other is not req and shared - shared % page >= WORTH_WAITING_FOR

    def _in_order(self) -> list[Req]:
        """The longest waiting requests (`policy_window` of them) in the policy's order.

        Made anew only after an arrival or a change in the tree, so a step in which nothing can be admitted costs little
        however many wait.
        """
        made_for = (self._arrivals, self.cache.radix_cache.version)
        if made_for != self._order_made_for or not any(req in self.waiting for req in self._order):
            window = list(islice(self.waiting, self.config.policy_window))
            self._order = self._policy(window, self.cache.radix_cache, self._rng)
            self._order_made_for = made_for
        return self._order

    def _forget_finished(self) -> None:
        self.running = [req for req in self.running if not req.finished]

    def _keep_prompt_logprobs(self, batch: Batch) -> None:
        assert batch.prompt_logprobs is not None
        assert batch.prefix_lens is not None
        new_lens = (batch.seq_lens - batch.prefix_lens).tolist()
        for req, values in zip(batch.reqs, batch.prompt_logprobs.split(new_lens), strict=True):
            if req.params.prompt_logprobs:
                req.prompt_logprobs = [None, *values[1:].tolist()]
