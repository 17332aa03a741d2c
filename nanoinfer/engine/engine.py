"""Engine: requests in, tokens out, one step at a time."""

import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nanoinfer.adapters.adapter import Adapter
from nanoinfer.adapters.manager import Adapters
from nanoinfer.cache.block_feed import BlockFeed
from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.config import EngineConfig
from nanoinfer.drafting.make import scheduler_for
from nanoinfer.engine.by_hand import ByHand
from nanoinfer.engine.stats import EngineStats, engine_stats
from nanoinfer.engine.step_guard import Loop, StepGuard
from nanoinfer.errors import AdapterError, EngineClosedError, InvalidRequestError, QueueFullError
from nanoinfer.grammars.grammars import Grammars, NewMatcher
from nanoinfer.model.layers.logits_processor import Likeliest
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.requests.continuation import replay
from nanoinfer.requests.open_requests import OpenRequests
from nanoinfer.requests.outputs import RequestGroup, RequestOutput
from nanoinfer.requests.req import AdapterKey, FinishReason
from nanoinfer.requests.request import Prompt, Request, params_or_default
from nanoinfer.requests.request_builder import RequestBuilder
from nanoinfer.requests.request_keywords import request_keywords
from nanoinfer.requests.sampling_params import SamplingParams
from nanoinfer.requests.tokenizer import Tokenizer
from nanoinfer.requests.translations import NamedAdapter
from nanoinfer.sampling.sampler import Sampler
from nanoinfer.scheduling.batch import Batch
from nanoinfer.threads.exit_gate import exit_gate
from nanoinfer.threads.signals import interruptible
from nanoinfer.threads.turns import Turns


class Engine:
    """Serves one model to many requests at once. All work is done inside `step()`.

    Only one thread at a time may drive it by hand (`add_request`, `step`): while requests that this thread added are
    unfinished, another thread gets a RuntimeError. So does a step by hand while `loop`, the thread behind an LLM or an
    AsyncEngine, has work. Everything else may be called from any thread, and waits for the current step to end.

    `clock` returns seconds, for deadlines, latencies and step times. `draft_runner` runs the draft model of
    `drafter="model"`: over the same rows, and a pool of the same size.
    """

    def __init__(
        self,
        model_runner: ModelRunner,
        config: EngineConfig,
        vocab_size: int,
        eos_token_ids: Sequence[int] = (),
        tokenizer: Tokenizer | None = None,
        clock: Callable[[], float] = time.perf_counter,
        draft_runner: ModelRunner | None = None,
    ):
        self.model_runner, self.config, self._clock = model_runner, config, clock
        self.builder = RequestBuilder(vocab_size, eos_token_ids, tokenizer, config.random_seed)
        self.grammars = Grammars(tokenizer, vocab_size, self.builder.eos_token_ids)
        self.radix_cache = RadixCache(
            model_runner.req_to_token_pool,
            model_runner.token_to_kv_pool,
            config.page_size,
            config.eviction_policy,
            config.disable_radix_cache,
        )
        self.cache = CacheManager(model_runner.req_to_token_pool, model_runner.token_to_kv_pool, self.radix_cache)
        self.adapters = Adapters(model_runner.model, config.max_adapters_on_device)
        model_runner.adapters = self.adapters.pool
        self.sampler = Sampler(getattr(model_runner.model, "kernels", None))
        self.scheduler = scheduler_for(
            config, self.cache, self.sampler, clock, self.adapters.pool, draft_runner, vocab_size
        )
        self._block_feed: BlockFeed | None = None  # made when somebody asks for it
        self.last_batch: Batch | None = None  # the last pass of the last step, for inspection
        self.open_requests = OpenRequests()
        self._guard = StepGuard(self.scheduler, self.open_requests, model_runner, clock)
        self._by_hand = ByHand(self._guard, self.open_requests)
        self.paused_by: dict[int, threading.Thread] = {}  # by request id
        self._ids = count()
        self._closed = False

    @property
    def turns(self) -> Turns:
        """Lets one thread at a time into the engine."""
        return self._guard.turns

    @property
    def loop(self) -> Loop:
        """The EngineLoop that owns this engine, if `loop_of` has made one; otherwise one that never has work."""
        return self._guard.loop

    @loop.setter
    def loop(self, loop: Loop) -> None:
        self._guard.loop = loop

    # --- requests ------------------------------------------------------------------------------------------------

    @request_keywords(last="submit")
    def add_request(
        self,
        prompt: Prompt,
        params: SamplingParams | Mapping[str, Any] | None = None,
        *,
        extra_key: Hashable = None,
        name: str = "prompt",
        timeout_s: float | None = None,
        adapter: str | None = None,
    ) -> int:
        """Queue a prompt (text or token ids) and return its request id, which its outputs also have.

        `extra_key` (None, text, bytes, an integer or a tuple of these): only requests with equal keys share cached
        prefixes. `name`: what error messages call the prompt. `timeout_s`: after so many seconds from now, completions
        that are still running end (FinishReason.TIMEOUT). `adapter`: the name of a loaded adapter; None or "base": the base
        model.
        Raises InvalidRequestError (a ValueError) when the request can never be served, QueueFullError when too many
        requests wait, EngineClosedError after `shutdown`. Nothing has changed then.
        """
        self._by_hand.check()
        request = Request(prompt, params_or_default(params), extra_key, timeout_s, name, adapter)
        return self.prepare(request)  # type: ignore[return-value]  # `submit` makes the id of it

    def prepare(self, request: Request) -> RequestGroup:
        """Do all of `add_request` except queueing: check the request and build its Reqs. `submit_all` can then queue
        several requests, all or none."""
        with exit_gate:
            most = self.config.max_total_tokens
            request, prompt_ids = self.builder.check(request, self.config.max_context_len, most)
            self._check_pool(prompt_ids, request)
            self._check_queue(request.params.n)
            new_matcher, timeout_s = self._prepare_grammar(request)
            adapter = self._find_adapter(request)
            request_id = next(self._ids)
            reqs = self.builder.build(request_id, prompt_ids, request.params, request.extra_key, adapter, new_matcher)
            if len(request.output_ids):
                replay(reqs[0], request.output_ids, request.name)
            return self.open_requests.expect(RequestGroup(request_id, reqs, timeout_s, request.prompt))

    def _prepare_grammar(self, request: Request) -> tuple[NewMatcher | None, float | None]:
        """What makes the request's matchers, and how much of its `timeout_s` is left when its grammar is compiled."""
        began = self._clock()
        new_matcher = self.grammars.prepare(request.params, request.name, request.timeout_s)
        if new_matcher is None or request.timeout_s is None:
            return new_matcher, request.timeout_s
        return new_matcher, max(request.timeout_s - (self._clock() - began), 0.0)

    def check_arguments(self, request: Request) -> None:
        """Check all of a request but its prompt: for a call that has no prompts. Errors as in `add_request`."""
        self.builder.check_params(request.params, request.extra_key, request.name)
        self.builder.check_timeout(request.timeout_s, request.name)
        self._find_adapter(request)

    def submit(self, group: RequestGroup) -> int:
        """Queue what `prepare` returned, and return its request id. Errors as in `submit_all`."""
        return self.submit_all([group])[0]

    def submit_all(self, groups: Sequence[RequestGroup]) -> list[int]:
        """Queue what `prepare` returned, all or none, and return the request ids.

        Raises QueueFullError, EngineClosedError, or ValueError for what was submitted before. None is queued then.
        """
        queued: Sequence[RequestGroup] = []
        try:
            with self.turns.visit():
                self._check_queue(sum(len(group.reqs) for group in groups))
                self._check_adapters(groups)
                self.open_requests.add(groups, self._clock())
                queued = groups
                for req in [req for group in groups for req in group.reqs]:
                    self.scheduler.add(req)
            return [group.request_id for group in groups]
        except BaseException:  # for example, a delayed signal handler raises: the caller does not get the ids
            with self.turns.visit(let_handlers_in=False):
                for group in queued:
                    if any(req not in self.scheduler.waiting for req in group.reqs):
                        self.abort(group.request_id)  # another thread's pass has already started it
                        continue
                    self.open_requests.take_back([group])
                    for req in group.reqs:
                        self.scheduler.waiting.discard(req)
            raise

    def abort(self, request_id: int) -> RequestOutput | None:
        """End a request now, whatever its state, and return its last output.

        None when the request is unknown, or when it has ended and its last output was delivered, which can happen just
        before the abort.
        """

        def end() -> list[RequestOutput]:
            self._guard.end([request_id], FinishReason.ABORT, "aborted")
            return self.open_requests.withdraw(request_id)

        outputs = self._guard.hand_out(end)
        return outputs[0] if outputs else None

    def abort_all(self, error: BaseException | None = None) -> list[RequestOutput]:
        """End every request now; returns their last outputs, and outputs that `step` has not delivered yet.

        `error`: the reason, which the outputs then carry.
        """
        counted_as = "aborted" if error is None else "failed"

        def end() -> list[RequestOutput]:
            self._guard.end(list(self.open_requests.groups), FinishReason.ABORT, counted_as, error)
            return self.open_requests.deliver()

        return self._guard.hand_out(end)

    def pause(self, request_id: int) -> None:
        """Leave a request out of all passes until `resume`. Its deadline stays.

        It gives back its row and slots. Its computed tokens stay in the tree as long as there is room, so that it can
        continue where it was. A step does nothing if every request is paused. ValueError when no such request is open.
        """
        with self.turns.visit():
            self.turns.check_between_passes()
            for req in self._open_group(request_id).reqs:
                if not req.finished:
                    self.scheduler.pause(req)
            self.paused_by = {i: thread for i, thread in self.paused_by.items() if i in self.open_requests.groups}
            self.paused_by[request_id] = threading.current_thread()

    def resume(self, request_id: int) -> None:
        """Queue a paused request again: ahead of requests that were never admitted if it was admitted before, else behind.

        Does nothing to a request that is not paused; `max_queue` does not apply. ValueError when no such request is open.
        """
        with self.turns.visit():
            for req in self._open_group(request_id).reqs:
                self.scheduler.resume(req)
            self.paused_by.pop(request_id, None)
        self.loop.wake()

    def load_adapter(self, name: str, path: str | Path) -> Adapter:
        """Read the adapter in the folder `path`, in PEFT's format. Requests can use it from now on, by its `name`.

        AdapterError naming what is wrong, EngineClosedError after `shutdown`; nothing has changed then.
        """
        if self._closed:
            raise EngineClosedError("this engine has been shut down; it loads no adapters")
        return self.adapters.load(name, path)

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter, and free its cached tokens, which no request would ever find.

        AdapterError if there is no such adapter, or while requests use it: they would have to end first.
        """
        with self.turns.visit():
            self.turns.check_between_passes()
            adapter = self.adapters.find(name)
            reqs = [req for group in self.open_requests.groups.values() for req in group.reqs if not req.finished]
            if users := {req.request_id for req in reqs if adapter is not None and req.adapter is adapter}:
                raise AdapterError(
                    f"adapter={name!r}: requests use it: {len(users)} (the first: request_id={min(users)}); abort them, or "
                    "wait until they have ended"
                )
            if adapter is not None:
                self.radix_cache.evict_keys(lambda key: isinstance(key, AdapterKey) and key.id == adapter.id)
            self.adapters.unload(name)

    def shutdown(self) -> list[RequestOutput]:
        """Shut down for good: abort all requests, free every slot, and refuse later requests with EngineClosedError.

        May be called again, and then does nothing.
        """

        def close() -> list[RequestOutput]:
            self._closed = True
            outputs = self.abort_all()
            self.flush_cache()
            self.model_runner.close()
            return outputs

        return self._guard.hand_out(close)

    @property
    def is_closed(self) -> bool:
        """True when it takes no more requests: it was shut down, or its runner is broken."""
        return self._closed or self.model_runner.broken is not None

    def has_unfinished(self) -> bool:
        """True while `step()` has something to do or to deliver."""
        with self.turns.visit():
            return bool(self.open_requests) or self.has_work()

    def has_work(self) -> bool:
        """True while a step would compute or end something. A paused request is no work until its deadline."""
        return bool(self.scheduler.waiting or self.scheduler.running) or self.seconds_to_deadline() == 0

    def seconds_to_deadline(self) -> float | None:
        """Seconds until the earliest deadline of an open request: 0 when it has passed, None when there is none."""
        with self.turns.visit():
            deadline = self.open_requests.next_deadline()
        return None if deadline is None else max(deadline - self._clock(), 0.0)

    def is_unfinished(self, request_id: int) -> bool:
        """True while this request is waiting, running or paused."""
        return request_id in self.open_requests.groups

    # --- the step ------------------------------------------------------------------------------------------------

    def step(self) -> list[RequestOutput]:
        """Make one pass, or up to `num_scheduler_steps` decode passes of the same requests. Returns the state of every
        request that got a new token or has ended. A request of which only a chunk of the prompt was computed is not among
        them.

        When it raises, the requests of the pass are aborted and their slots freed; the others are untouched. The next
        step returns the aborted ones with what was raised (`RequestOutput.error`). Requests whose `timeout_s` has passed
        end before the step's first pass; if it passes later in the step, nothing is interrupted.

        Ctrl-C and other Python signal handlers can interrupt the model's pass and sampling, with the same consequences,
        but never the bookkeeping around them (see StepGuard).
        """
        return self._guard.step(self._one_pass, self._by_hand.check_step)

    def _one_pass(self) -> Batch | None:
        """Schedule → run the model → sample → process → collect. None when there is nothing to do."""
        batch = self.last_batch = self.scheduler.schedule()
        if batch is None:
            return None
        with interruptible():
            logits, _ = self.model_runner.forward(batch, batch.forward_mode, batch.wants_prompt_logprobs)
            token_ids, logprobs = self._sample(batch, logits)
        self.scheduler.process_batch_result(batch, token_ids, logprobs)
        self.open_requests.collect(batch.sampled_reqs)
        return batch

    def _sample(
        self, batch: Batch, logits: torch.Tensor | Likeliest
    ) -> tuple[list[int], list[dict[int, float] | None]]:
        """The next token of each of `batch.rows` and the log-probabilities that they want. `logits` [rows, V]."""
        reqs = batch.rows
        if isinstance(logits, Likeliest):  # then nothing else is wanted
            return self.sampler.sample(logits, reqs).tolist(), [None] * len(reqs)
        batch.gather_prompt_logprobs(logits)
        if not reqs:
            return [], []
        logits = logits[: len(reqs)]
        token_ids = self.sampler.sample(logits, reqs)
        return token_ids.tolist(), self.sampler.logprobs(logits, token_ids, reqs)

    def deliver_later(self, outputs: Sequence[RequestOutput]) -> None:
        """Keep outputs of `step()` that belong to other callers. The next `step()` returns the latest one per request."""
        self.open_requests.hold(outputs)

    # --- looking at it -------------------------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """Where requests and slots are now, totals since the start, recent speed, and which kernels compute."""
        with self.turns.visit():
            meter = self._guard.meter
            return engine_stats(self.scheduler, self.open_requests, meter, self.model_runner, self.adapters)

    def check_integrity(self) -> None:
        """RuntimeError unless every slot and row has exactly one owner: `free + tree + requests == N`."""
        with self.turns.visit():
            self.cache.check_integrity(self.scheduler.running)

    def flush_cache(self) -> int:
        """Free every cached token that no running request relies on, and return how many there were."""
        with self.turns.visit():
            return self.radix_cache.evict(self.radix_cache.evictable_size())

    def block_feed(self, event_block_size: int = 16) -> BlockFeed:
        """What the tree holds, in numbered batches: one for each step, and each visit between steps, that changes it. A
        router learns from it what is cached where (`nanoinfer.cluster`).

        The first call starts the feed; until then, it costs nothing. Later ones return the same feed; ValueError if they
        want other blocks.
        """
        with self.turns.visit():
            if self._block_feed is None:
                turns = self.turns
                self._block_feed = BlockFeed(self.radix_cache, event_block_size, turns.soon, turns.visit)
            elif self._block_feed.event_block_size != event_block_size:
                size = self._block_feed.event_block_size
                raise ValueError(f"event_block_size={event_block_size}: must be {size}, as when the feed was started")
            return self._block_feed

    # --- how it works --------------------------------------------------------------------------------------------

    def _open_group(self, request_id: int) -> RequestGroup:
        group = self.open_requests.groups.get(request_id)
        if group is None:
            raise ValueError(f"request_id={request_id}: must be the id of a request that has not ended")
        return group

    def _check_queue(self, more: int) -> None:
        if self._closed:
            raise EngineClosedError("this engine has been shut down; it takes no more requests")
        if (broken := self.model_runner.broken) is not None:
            raise EngineClosedError(f"this engine takes no more requests: {broken}") from broken
        waiting, limit = len(self.scheduler.waiting), self.config.max_queue
        if limit is not None and waiting + more > limit:
            raise QueueFullError(f"{waiting} requests wait and {more} more arrive: must not exceed max_queue={limit}")

    def _find_adapter(self, request: Request) -> Adapter | None:
        try:
            if isinstance(request.adapter, NamedAdapter):
                return self.adapters.loaded(request.adapter)
            return self.adapters.find(request.adapter)
        except AdapterError as error:
            raise InvalidRequestError(f"{request.name}: {error}") from error

    def _check_adapters(self, groups: Sequence[RequestGroup]) -> None:
        """A request may have been prepared before its adapter was unloaded."""
        for adapter in {group.reqs[0].adapter for group in groups} - {None}:
            if self.adapters.get(adapter.name) is not adapter:
                raise InvalidRequestError(f"adapter={adapter.name!r}: has been unloaded since the request was prepared")

    def _check_pool(self, prompt_ids: np.ndarray, request: Request) -> None:
        slots = self.cache.whole_pages(len(prompt_ids) + request.params.max_new_tokens - 1)
        if slots > self.cache.token_to_kv_pool.size:
            raise InvalidRequestError(
                f"{request.name}: {len(prompt_ids)} prompt tokens + max_new_tokens={request.params.max_new_tokens} need "
                f"{slots} slots: must not exceed max_total_tokens={self.cache.token_to_kv_pool.size}"
            )
