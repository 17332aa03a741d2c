"""A model that needs no weights, the bookkeeping around it without an engine, and a counter of work."""

import gc
import sys
import zlib
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import torch

from nanoinfer import SamplingParams
from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.radix_cache import MatchResult, RadixCache
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.config import EngineConfig
from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.outputs import FinishReason
from nanoinfer.registry import SCHEDULE_POLICIES
from nanoinfer.requests.req import Req
from nanoinfer.scheduler.batch import Batch
from nanoinfer.scheduler.multi_step import make_scheduler
from nanoinfer.scheduler.policy import Policy

A, B, C = range(100, 120), range(200, 220), range(300, 320)  # tokens of prompts that share nothing


def next_token(tokens: Sequence[int], extra_key: Hashable, vocab_size: int) -> int:
    """What the fake model continues `tokens` with: any token, but always the same."""
    return zlib.crc32(repr((extra_key, list(tokens))).encode()) % vocab_size


def expected_output(req: Req, vocab_size: int) -> tuple[list[int], FinishReason]:
    """What a request must come to, served alone and with no cache: tokens and reason."""
    tokens: list[int] = req.token_ids[: req.prompt_len].tolist()
    for count in range(1, req.params.max_new_tokens + 1):
        tokens.append(next_token(tokens, req.extra_key, vocab_size))
        if tokens[-1] in req.stop_token_ids and count >= req.params.min_new_tokens:
            return tokens[req.prompt_len :], FinishReason.STOP
    return tokens[req.prompt_len :], FinishReason.LENGTH


class CountingCache(RadixCache):
    """A tree that counts how often a prefix is looked up in it, to match or to peek."""

    look_ups = 0

    def match_prefix(self, *args: Any, **kwargs: Any) -> MatchResult:
        self.look_ups += 1
        return super().match_prefix(*args, **kwargs)

    def peek_prefix(self, *args: Any, **kwargs: Any) -> tuple[int, TreeNode]:
        self.look_ups += 1
        return super().peek_prefix(*args, **kwargs)


class CountingPolicy:
    """A scheduling policy, to be registered, that ranks as the policy `name` does and remembers how many it ranked."""

    def __init__(self, name: str):
        self.policy: Policy = SCHEDULE_POLICIES[name]
        self.ranked: list[int] = []

    def __call__(self, reqs: Sequence[Req], cache: RadixCache, rng: np.random.Generator) -> list[Req]:
        self.ranked.append(len(reqs))
        return self.policy(reqs, cache, rng)


class FakeModel:
    """The "K/V" of a token is the namespace and all tokens up to it, so that a wrong slot is seen when it is read."""

    def __init__(self, cache: CacheManager, vocab_size: int):
        self.cache, self.vocab_size = cache, vocab_size
        self.kv: list[object] = [None] * cache.token_to_kv_pool.size

    def forward(self, batch: Batch) -> list[int]:
        """Check all that the batch says, write K/V to `out_cache_loc`, read it back through the rows: next tokens."""
        seq_lens = batch.seq_lens.tolist()
        extend = batch.forward_mode is ForwardMode.EXTEND
        assert (batch.prefix_lens is not None) == extend
        prefix_lens = [seq - 1 for seq in seq_lens] if batch.prefix_lens is None else batch.prefix_lens.tolist()
        assert batch.input_ids.dtype == torch.int64
        for indices in (batch.req_pool_indices, batch.seq_lens, batch.out_cache_loc):
            assert indices.dtype == torch.int32
        input_ids, out = iter(batch.input_ids.tolist()), iter(batch.out_cache_loc.tolist())
        for req, seq, prefix in zip(batch.reqs, seq_lens, prefix_lens, strict=True):
            assert 0 <= prefix < seq <= req.num_tokens
            assert (seq == req.num_tokens) == (req in batch.sampled_reqs)
            for position in range(prefix, seq):
                assert next(input_ids) == req.token_ids[position]
                self.kv[next(out)] = (req.extra_key, tuple(req.token_ids[: position + 1].tolist()))
        assert list(input_ids) == list(out) == []
        rows = batch.req_pool_indices.tolist()
        for req, row, seq in zip(batch.reqs, rows, seq_lens, strict=True):
            slots = self.cache.rows[row, :seq].tolist()
            read = [self.kv[slot] for slot in slots]
            assert read == [(req.extra_key, tuple(req.token_ids[: i + 1].tolist())) for i in range(seq)]
        assert batch.wants_prompt_logprobs == (extend and any(req.wants_prompt_logprobs for req in batch.reqs))
        for req, prefix, seq in zip(batch.reqs, prefix_lens, seq_lens, strict=True):
            if extend and req.wants_prompt_logprobs:
                following = float(seq) if seq < req.prompt_len else None
                req.add_prompt_logprobs(prefix, [float(i) for i in range(prefix, seq)], following)
        return [
            next_token(req.token_ids[: req.num_tokens].tolist(), req.extra_key, self.vocab_size)
            for req in batch.sampled_reqs
        ]


SET_ALL_ASIDE = 11.0  # schedule_conservativeness from which on no request is ever retracted


class FakeServer:
    """Pools, tree, scheduler and the fake model, one step at a time; everything is checked after every step.

    Admission sets aside all that running requests may need, unless `schedule_conservativeness` says otherwise.
    """

    def __init__(
        self,
        max_total_tokens: int = 64,
        max_running_requests: int = 8,
        max_context_len: int = 64,
        vocab_size: int = 1000,
        **fields: Any,
    ):
        fields = {"schedule_conservativeness": SET_ALL_ASIDE, **fields}
        self.config = EngineConfig(max_running_requests, max_total_tokens, max_context_len, **fields)
        self.rows = ReqToTokenPool(max_running_requests, max_context_len)
        self.pool = TokenToKVPool(max_total_tokens, torch.float32, 1, 1, 1, page_size=self.config.page_size)
        self.tree = CountingCache(
            self.rows,
            self.pool,
            self.config.page_size,
            self.config.eviction_policy,
            self.config.disable_radix_cache,
        )
        self.cache = CacheManager(self.rows, self.pool, self.tree)
        self.scheduler = make_scheduler(self.config, self.cache)
        self.model = FakeModel(self.cache, vocab_size)
        self.vocab_size = vocab_size
        self.num_added = 0

    def add(
        self,
        prompt: Sequence[int],
        max_new_tokens: int = 4,
        extra_key: Hashable = None,
        stop_token_ids: Sequence[int] = (),
        **params: Any,
    ) -> Req:
        """Queue a request."""
        sampling = SamplingParams(max_new_tokens=max_new_tokens, **params)
        req = Req(self.num_added, np.array(prompt), sampling, frozenset(stop_token_ids), extra_key=extra_key)
        assert self.cache.whole_pages(req.max_kv_len) <= self.pool.size, "the engine refuses this on arrival"
        self.num_added += 1
        self.scheduler.add(req)
        return req

    def step(self) -> Batch | None:
        """One pass, as `Engine.step` does it; returns its batch."""
        batch = self.scheduler.schedule()
        if batch is not None:
            self.check()
            self.scheduler.process_batch_result(batch, self.model.forward(batch), [None] * len(batch.sampled_reqs))
        self.check()
        return batch

    def run(self, limit: int = 1000) -> None:
        """Step until nothing waits or runs."""
        for _ in range(limit):
            if self.step() is None:
                assert not self.scheduler.waiting
                assert not self.scheduler.running
                return
        raise AssertionError(f"not done after {limit} steps")

    def serve(self, prompt: Sequence[int], max_new_tokens: int = 4, **fields: Any) -> Req:
        """One request from its arrival to its end."""
        req = self.add(prompt, max_new_tokens, **fields)
        self.run()
        return req

    def abort(self, *reqs: Req) -> None:
        self.scheduler.end(reqs, FinishReason.ABORT)
        self.check()

    def check(self) -> None:
        """One owner a slot; rows agree with the tree; what is reserved can be had; limits are kept."""
        running, waiting = self.scheduler.running, self.scheduler.waiting
        self.cache.check_integrity(running)
        assert len(running) <= self.config.max_running_requests
        assert not any(req in waiting or req.finished for req in running)
        in_requests = 0
        for req in running:
            assert req.tree_len <= req.kv_len <= req.allocated_len
            assert req.num_output_tokens or req is self.scheduler.prefilling or req in self.scheduler.planned
            assert req.tree_len % self.config.page_size == req.allocated_len % self.config.page_size == 0
            path, node = [], req.last_node
            while node is not None:
                path[:0], node = node.value.tolist(), node.parent
            if not self.tree.disable:
                assert self.cache.rows[req.req_pool_idx, : req.tree_len].tolist() == path
            in_requests += req.allocated_len - req.tree_len
        assert self.pool.available_size() + self.tree.total_size() + in_requests == self.pool.size
        if self.scheduler.new_token_ratio.floor == 1:
            assert sum(map(self.cache.outstanding_size, running)) <= self.cache.obtainable_size()
        for req in waiting:
            assert (req.req_pool_idx, req.last_node, req.allocated_len, req.finished) == (None, None, 0, False)

    def check_all_free(self) -> None:
        """Nothing is left anywhere once the cache is emptied."""
        assert self.tree.protected_size() == 0
        self.tree.evict(self.tree.evictable_size())
        self.check()
        assert self.pool.available_size() == self.pool.size
        assert self.rows.available_size() == self.rows.size


def passes(server: FakeServer) -> Iterator[tuple[ForwardMode, list[Req]]]:
    """(mode, requests) of every pass until all is done."""
    while (batch := server.step()) is not None:
        yield batch.forward_mode, list(batch.reqs)


def assert_as_expected(server: FakeServer, *reqs: Req) -> None:
    for req in reqs:
        assert (req.output_ids, req.finish_reason) == expected_output(req, server.vocab_size)


def bare_step(server: FakeServer) -> None:
    """A DECODE step without the checks, which go through everything."""
    batch = server.scheduler.schedule()
    assert batch is not None
    assert batch.forward_mode is ForwardMode.DECODE
    server.scheduler.process_batch_result(batch, [1] * len(batch.reqs), [None] * len(batch.reqs))


def admissions(server: FakeServer) -> list[Req]:
    """Step once; who was admitted for the first time in it, in order."""
    before = set(server.scheduler.waiting)
    batch = server.step()
    if batch is None:
        return []
    return [req for req in batch.reqs if req in before and not req.num_retractions]


@contextmanager
def counted_calls() -> Iterator[Counter[str]]:
    """Counts function calls, Python and C, while open: a measure of work that no clock is needed for.

    The garbage collector, which would call what others have asked it to call, waits.
    """
    calls: Counter[str] = Counter()

    def on_event(frame: FrameType, event: str, arg: Any) -> None:
        if event in ("call", "c_call"):
            calls[frame.f_code.co_name if event == "call" else arg.__name__] += 1

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()
    sys.setprofile(on_event)
    try:
        yield calls
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
