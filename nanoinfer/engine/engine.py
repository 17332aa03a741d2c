"""Engine: requests in, tokens out, one step at a time."""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from nanoinfer.adapters.manager import Adapters
from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.config import EngineConfig
from nanoinfer.drafting.load import scheduler_for
from nanoinfer.engine.arrivals import Arrivals
from nanoinfer.engine.by_hand import ByHand, Loop
from nanoinfer.engine.step_guard import StepGuard
from nanoinfer.engine.tiers import host_tier_for
from nanoinfer.engine.upkeep import EngineUpkeep
from nanoinfer.errors import EngineClosedError, QueueFullError
from nanoinfer.grammars.compiler import Grammars
from nanoinfer.model.layers.logits_processor import LogitsOutput
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.requests.open_requests import OpenRequests
from nanoinfer.requests.outputs import RequestOutput
from nanoinfer.requests.req import FinishReason
from nanoinfer.requests.request import Prompt, Request, params_or_default
from nanoinfer.requests.request_builder import RequestBuilder
from nanoinfer.requests.request_group import RequestGroup
from nanoinfer.requests.sampling_params import SamplingParams
from nanoinfer.requests.tokenizer import Tokenizer
from nanoinfer.sampling.sampler import Sampler
from nanoinfer.scheduling.batch import Batch
from nanoinfer.scheduling.prompt_scores import gather_prompt_logprobs
from nanoinfer.threads.exit_gate import exit_gate
from nanoinfer.threads.signals import interruptible


class Engine(EngineUpkeep):
    """Serves one model to many requests at once. All work is done inside `step()`.

    Only one thread at a time may drive it by hand (`add_request`, `step`): while requests that this thread added are
    unfinished, another thread gets a RuntimeError. So does a step by hand while `loop`, the thread behind an LLM or an
    AsyncEngine, has work. Everything else may be called from any thread, and waits for the current step to end.

    `clock` returns seconds, for deadlines, latencies and step times. `draft_runner` runs the draft model of
    `drafter="model"`: over the same rows, and a pool of the same size. `sampling_defaults`: the checkpoint's, by field of
    SamplingParams, for requests that do not give them.
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
        sampling_defaults: Mapping[str, float] | None = None,
    ):
        super().__init__()
        self.model_runner, self.config, self._clock = model_runner, config, clock
        self.builder = RequestBuilder(vocab_size, eos_token_ids, tokenizer, config.random_seed, sampling_defaults)
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
        self.last_batch: Batch | None = None  # the last pass of the last step, for inspection
        self.open_requests = OpenRequests()
        self._guard = StepGuard(self.scheduler, self.open_requests, model_runner, clock)
        self.cache.storey = host_tier_for(config, self.cache, self.scheduler)
        self._by_hand = ByHand(self.turns, lambda: self.loop, self.open_requests)
        self._arrivals = Arrivals(
            config, self.cache, self.builder, self.grammars, self.adapters, clock, self._check_queue
        )
        self._closed = False

    @property
    def loop(self) -> Loop:
        """The EngineLoop that owns this engine, if `loop_of` has made one; otherwise one that never has work."""
        return self._guard.loop

    @loop.setter
    def loop(self, loop: Loop) -> None:
        self._guard.loop = loop

    # --- requests ------------------------------------------------------------------------------------------------

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
        return self.submit(self.prepare(request))

    def prepare(self, request: Request) -> RequestGroup:
        """Do all of `add_request` except queueing: check the request and build its Reqs. `submit_all` can then queue
        several requests, all or none."""
        with exit_gate:
            return self.open_requests.expect(self._arrivals.prepare(request))

    def check_arguments(self, request: Request) -> None:
        """Check all of a request but its prompt: for a call that has no prompts. Errors as in `add_request`."""
        self._arrivals.check_arguments(request)

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
                self._arrivals.check_adapters(groups)
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
            output = self.model_runner.forward_batch(batch)
            token_ids, logprobs = self._sample(batch, output)
        self.scheduler.process_batch_result(batch, token_ids, logprobs)
        self.open_requests.collect(batch.sampled_reqs)
        return batch

    def _sample(self, batch: Batch, output: LogitsOutput) -> tuple[list[int], list[dict[int, float] | None]]:
        """The next token of each of `batch.choosing`, and the log-probabilities that they want."""
        gather_prompt_logprobs(batch, output)
        reqs = batch.choosing
        if not reqs:
            return [], []
        output = output.first(len(reqs))
        token_ids = self.sampler.sample(output.to_sample, reqs)
        if output.likeliest is not None:  # then nothing else is wanted
            return token_ids.tolist(), [None] * len(reqs)
        return token_ids.tolist(), self.sampler.logprobs(output.logits, token_ids, reqs)

    def deliver_later(self, outputs: Sequence[RequestOutput]) -> None:
        """Keep outputs of `step()` that belong to other callers. The next `step()` returns the latest one per request."""
        self.open_requests.hold(outputs)

    def _check_queue(self, more: int) -> None:
        if self._closed:
            raise EngineClosedError("this engine has been shut down; it takes no more requests")
        if (broken := self.model_runner.broken) is not None:
            raise EngineClosedError(f"this engine takes no more requests: {broken}") from broken
        waiting, limit = len(self.scheduler.waiting), self.config.max_queue
        if limit is not None and waiting + more > limit:
            raise QueueFullError(f"{waiting} requests wait and {more} more arrive: must not exceed max_queue={limit}")
