"""A plain model of the engine under pressure: for test_pressure.py and soak.py.

`World`: an engine, and beside it the little that a caller can know: who is unfinished, and what each must come to.
Whatever is done to the engine is done through it, and after everything it checks both.
"""

import math
from collections.abc import Callable, Hashable, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from nanoinfer.config import EngineConfig
from nanoinfer.engine.engine import Engine
from nanoinfer.errors import AdapterError, QueueFullError
from nanoinfer.llm import make_engine
from nanoinfer.model.loader import LoadedModel
from nanoinfer.model.lora import pool
from nanoinfer.outputs import FinishReason, RequestOutput
from nanoinfer.requests.seeds import derived_seed
from nanoinfer.requests.tokenizer import TokenIds, Tokenizer
from nanoinfer.sampling_params import LogitsProcessor, SamplingParams
from tests.helpers.block_mirror import FeedReader, blocks_of_tree
from tests.helpers.engines import Clock
from tests.helpers.fetches import Fetches
from tests.helpers.oracles import VOCAB, Continuation, NetworkOracle, Oracle, make_draft_model  # noqa: F401


def never_twice_in_a_row(token_ids: Any, logits: torch.Tensor) -> torch.Tensor:
    """A logits processor: the newest token is forbidden."""
    logits[int(token_ids[-1])] = -torch.inf
    return logits


class InjectedError(Exception):
    """Raised on purpose."""


class InjectedPanic(BaseException):
    """Raised on purpose, and no Exception: a panic of code in Rust reaches Python so."""


# Where an InjectedError comes from in a step, and where an InjectedPanic.
FAULTS = ("model", "sampler", "rows", "slots", "collect", "second pass", "fetch")
PANICS = ("decode", "insert", "processor", "panic in the sampler", "panic in the model")
RESETS = ("rows", "slots", "collect", "insert")  # those after which the engine starts anew


class WordTokenizer(Tokenizer):
    """Token 5 is the word " w5"."""

    eos_token_id = None

    def __init__(self) -> None:
        pass

    def decode(self, token_ids: TokenIds, skip_special_tokens: bool = True) -> str:
        return "".join(f" w{token}" for token in token_ids)


@dataclass
class Expected:
    """What the plain model knows of one request."""

    prompt: list[int]
    params: SamplingParams
    wanted: list[tuple[list[int], FinishReason, Continuation]]  # per completion
    deadline: float
    ends: int = 0
    seen: list[int] = field(default_factory=list)  # tokens, per completion
    adapter: str | None = None


class World:
    """An engine under pressure. Every method that does something checks everything afterwards."""

    def __init__(self, model: LoadedModel, oracle: Oracle, draft_model: LoadedModel | None = None, **fields: Any):
        self.oracle, self.clock = oracle, Clock()
        self.config = EngineConfig(**fields)
        if draft_model is None and "model" in self.config.drafters:
            draft_model = model  # which is always right
        self.engine: Engine = make_engine(model, self.config, self.clock, draft_model)
        self.fetches = self.engine.adapters.pool._executor = Fetches()
        self.adapters: dict[str, Oracle] = {}  # those that are loaded, by name
        self.requests: dict[int, Expected] = {}  # the unfinished ones
        self.paused: set[int] = set()
        self.counts = dict.fromkeys(
            ("steps", "added", "refused", "paused", "finished", "aborted", "timed_out", "failed"), 0
        )
        self.fault: str | None = None  # where the next step is to fail: one of FAULTS or PANICS
        self.readers: list[FeedReader] = []  # of the engine's feed, if anybody listens

    def listen(self, block_size: int) -> None:
        """From now on, one reader follows what the tree holds, and another one who loses some of the batches.

        With tiers below the pool, in blocks of a page, which always fill a tier's blocks.
        """
        feed = self.engine.block_feed(block_size if self.engine.cache.next_tier is None else self.config.page_size)
        self.readers = [FeedReader(feed), FeedReader(feed)]

    # --- what can happen ---------------------------------------------------------------------------------------------

    def add(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        seed: int | None = None,
        n: int = 1,
        stop: Sequence[int] = (),
        extra_key: Hashable = None,
        prompt_logprobs: bool = False,
        timeout_s: float | None = None,
        processor: LogitsProcessor | None = None,
        adapter: str | None = None,
    ) -> int | None:
        """Add a request; None when it was refused, rightly, or when its continuation is not clear."""
        prompt, oracle = list(prompt), self.oracle if adapter is None else self.adapters[adapter]
        seeds = [None] if seed is None else [derived_seed(seed, i) for i in range(n)]
        continuations = [oracle.continuation(prompt, seed, processor) for seed in seeds]
        if None in continuations:
            return None
        params = SamplingParams(
            max_new_tokens=max_new_tokens,
            temperature=0.0 if seed is None else 1.0,
            seed=seed,
            n=len(seeds),
            stop_token_ids=stop,
            logprobs=0,
            prompt_logprobs=prompt_logprobs,
            logits_processors=() if processor is None else (processor, _nothing),
        )
        full = self.config.max_queue is not None and len(self.engine.scheduler.waiting) + len(seeds) > (
            self.config.max_queue
        )
        before = self.engine.stats()
        try:
            rid = self.engine.add_request(prompt, params, extra_key=extra_key, timeout_s=timeout_s, adapter=adapter)
        except QueueFullError:
            assert full
            assert self.engine.stats() == before
            self.counts["refused"] += 1
            return None
        assert not full
        wanted = [(*_until_stop(c.tokens[:max_new_tokens], stop), c) for c in continuations if c is not None]
        deadline = math.inf if timeout_s is None else self.clock.now + timeout_s
        self.requests[rid] = Expected(prompt, params, wanted, deadline, seen=[0] * len(seeds), adapter=adapter)
        self.counts["added"] += 1
        self.check()
        return rid

    def step(self) -> None:
        """One step of the engine, with the fault that was asked for."""
        fault, self.fault = self.fault, None
        self.clock.now += 1.0
        engine, failed = self.engine, False
        with pytest.MonkeyPatch.context() as patch:
            if fault is not None:
                patch.setattr(*self._broken(fault))
            try:
                outputs = engine.step()
            except (InjectedError, InjectedPanic):
                failed = True
                outputs = []
        self.counts["steps"] += 1
        if failed:  # the next step returns those that were in it; this one must be free of faults
            assert engine.has_unfinished()
            late = {rid for rid, request in self.requests.items() if request.deadline <= self.clock.now}
            if fault in RESETS:
                ids = self.requests.keys() - late
                assert engine.stats().free_slots == engine.config.max_total_tokens
            else:
                ids = {req.request_id for req in engine.scheduler.planned}
                assert ids
            self.check(ended=ids | late)
            outputs = engine.step()
            self.counts["steps"] += 1
            assert ids <= {output.request_id for output in outputs}
            for output in outputs:
                if output.request_id in ids:
                    injected = isinstance(output.error, InjectedError | InjectedPanic)
                    assert injected or output.finish_reason in ("stop", "length")
        assert all(output.finished for output in outputs if output.request_id in self.paused)
        self._look_at(outputs)
        self.check()

    def load(self, name: str, folder: Path, oracle: Oracle) -> None:
        """Load an adapter, whose tokens `oracle` knows."""
        self.engine.load_adapter(name, folder)
        self.adapters[name] = oracle
        self.check()

    def unload(self, name: str) -> None:
        """Unload an adapter. That is refused while requests use it."""
        if any(request.adapter == name for request in self.requests.values()):
            with pytest.raises(AdapterError, match="requests use it"):
                self.engine.unload_adapter(name)
        else:
            self.engine.unload_adapter(name)
            del self.adapters[name]
        self.check()

    def pause(self, rid: int) -> None:
        """Leave a request out of passes until `resume`; again does nothing."""
        self.engine.pause(rid)
        self.counts["paused"] += rid not in self.paused
        self.paused.add(rid)
        self.check()

    def resume(self, rid: int) -> None:
        """Let a request go on; one that is not paused goes on as it did."""
        self.engine.resume(rid)
        self.paused.discard(rid)
        self.check()

    def abort(self, rid: int) -> None:
        """Take a request back, wherever it is."""
        output = self.engine.abort(rid)
        assert output is not None
        self._look_at([output])
        self.check()

    def flush(self) -> None:
        """Empty the cache."""
        before = self.engine.stats()
        assert self.engine.flush_cache() == before.evictable_slots
        assert self.engine.stats().free_slots == before.free_slots + before.evictable_slots
        self.check()

    def forget_retractions(self) -> None:
        """Let admission gamble again: after a retraction it would set so much aside that there are hardly any more."""
        ratio = self.engine.scheduler.new_token_ratio
        ratio.value = ratio.floor

    def drain(self) -> None:
        """Step until nothing is left, and see that nothing is: in no more steps than there are tokens to compute.

        Times 5, for what is computed again after a retraction or an eviction; a livelock would go on for ever.
        """
        for rid in list(self.paused):
            self.resume(rid)
        limit = 100 + 5 * sum(
            len(request.wanted) * (len(request.prompt) + request.params.max_new_tokens)
            for request in self.requests.values()
        )
        for _ in range(limit):
            if not self.engine.has_unfinished():
                break
            self.step()
        assert not self.requests, f"{len(self.requests)} requests unfinished after {limit} steps"
        assert self.engine.step() == []
        self.flush()
        stats = self.engine.stats()
        assert (stats.free_slots, stats.waiting, stats.running) == (stats.total_slots, 0, 0)
        assert self.engine.model_runner.req_to_token_pool.available_size() == self.config.max_running_requests

    def _broken(self, fault: str) -> tuple[Any, str, Callable[..., Any]]:
        """An object, its attribute, and what to replace it with for one step."""
        engine, tokenizer = self.engine, self.engine.builder.tokenizer
        good_decodes = iter(range(self.counts["steps"] % 4))  # before the one that fails

        def one_bad_decode(*args: Any) -> str:
            if next(good_decodes, None) is None:
                error()
            return WordTokenizer.decode(tokenizer, *args)

        def error(*args: Any) -> None:
            raise InjectedError("on purpose")

        def panic(*args: Any, **kwargs: Any) -> None:
            raise InjectedPanic("on purpose")

        model, good_passes = engine.model_runner.model, iter(range(1))

        def bad_second_pass(*args: Any) -> Any:
            return error() if next(good_passes, None) is None else model(*args)

        return {
            "second pass": (engine.model_runner, "model", bad_second_pass),
            "model": (engine.model_runner, "model", error),
            "sampler": (engine.sampler, "sample", error),
            "rows": (engine.model_runner.req_to_token_pool, "alloc", error),
            "slots": (engine.model_runner.token_to_kv_pool, "alloc", error),
            "insert": (engine.radix_cache, "insert", panic),
            "collect": (engine.open_requests, "collect", error),
            "fetch": (pool, "_pack", error),
            "decode": (tokenizer, "decode", one_bad_decode),
            "processor": (_nothing, "fault", panic),
            "panic in the sampler": (engine.sampler, "sample", panic),
            "panic in the model": (engine.model_runner, "model", panic),
        }[fault]

    # --- what must hold ----------------------------------------------------------------------------------------------

    def check(self, ended: Set[int] = frozenset()) -> None:
        """Every slot has one owner; exactly the requests known to be unfinished are open, `ended` ones not."""
        engine = self.engine
        engine.check_integrity()
        assert {rid for rid in self.requests if engine.is_unfinished(rid)} == self.requests.keys() - ended
        assert engine.has_unfinished() == bool(self.requests.keys() - self.paused)
        stats = engine.stats()
        assert (stats.paused > 0) == bool(self.paused - ended)
        slots = stats.free_slots + stats.evictable_slots + stats.protected_slots + stats.request_slots
        assert slots == stats.total_slots
        assert stats.running <= self.config.max_running_requests
        assert not set(engine.scheduler.running) & set(engine.scheduler.waiting)
        assert stats.loaded_adapters == len(self.adapters)
        assert stats.adapters_on_device <= self.config.max_adapters_on_device
        assert all(req.adapter is None or req.adapter.slot is not None for req in engine.scheduler.running)
        if self.readers:
            self._check_blocks()

    def _check_blocks(self) -> None:
        """Who follows the tree's events knows its blocks, and so does who has lost some and has noticed it."""
        careful, careless = self.readers
        blocks = blocks_of_tree(self.engine.radix_cache, careful.feed.event_block_size)
        careful.follow()
        assert careful.mirror.blocks == blocks
        assert not careful.snapshots
        step, seq = self.counts["steps"], careless.seq
        careless.follow(lost=step % 3)
        if step % 5 == 0:
            careless.catch_up()
        assert careless.seq < careful.seq or careless.mirror.blocks == blocks
        assert careless.seq >= seq

    def _look_at(self, outputs: Sequence[RequestOutput]) -> None:
        assert len({output.request_id for output in outputs}) == len(outputs)
        for output in outputs:
            request = self.requests[output.request_id]
            for i, ((tokens, reason, continuation), got) in enumerate(zip(request.wanted, output.outputs, strict=True)):
                assert got.token_ids == tokens[: len(got.token_ids)], "a token has changed"
                assert len(got.token_ids) >= request.seen[i], "a token has been lost"
                request.seen[i] = len(got.token_ids)
                assert got.logprobs is not None
                assert [list(entry) for entry in got.logprobs] == [[token] for token in got.token_ids]
                values = [value for entry in got.logprobs for value in entry.values()]
                assert values == pytest.approx(continuation.logprobs[: len(values)], abs=1e-3)
                early = got.finish_reason in (FinishReason.ABORT, FinishReason.TIMEOUT)
                if got.finish_reason is not None and not early:
                    assert (got.token_ids, got.finish_reason) == (tokens, reason)
                assert got.finish_reason != "timeout" or self.clock.now >= request.deadline
            if request.params.prompt_logprobs and output.prompt_logprobs is not None:
                wanted = request.wanted[0][2].prompt_logprobs
                assert output.prompt_logprobs[0] is None
                assert output.prompt_logprobs[1:] == pytest.approx(wanted[1:], abs=1e-3)
            elif request.params.prompt_logprobs:
                assert not output.outputs[0].token_ids
            else:
                assert output.prompt_logprobs is None
            if output.finished:
                names = {FinishReason.TIMEOUT: "timed_out", FinishReason.ABORT: "aborted"}
                ends = [names[each.finish_reason] for each in output.outputs if each.finish_reason in names]
                self.counts["failed" if output.error is not None else ends[0] if ends else "finished"] += 1
                del self.requests[output.request_id]  # a second end would not find it
                self.paused.discard(output.request_id)
        assert all(request.deadline > self.clock.now for request in self.requests.values()), "a deadline has passed"


class _Nothing:
    """A logits processor that changes nothing, until it is given a `fault` to call."""

    fault: Callable[[], None] | None = None

    def __call__(self, token_ids: Any, logits: torch.Tensor) -> torch.Tensor:
        if self.fault is not None:
            self.fault()
        return logits


_nothing = _Nothing()


def _until_stop(tokens: list[int], stop: Sequence[int]) -> tuple[list[int], FinishReason]:
    for i, token in enumerate(tokens):
        if token in stop:
            return tokens[: i + 1], FinishReason.STOP
    return tokens, FinishReason.LENGTH
