"""Engine: requests in, tokens out, one step at a time."""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.config import EngineConfig
from nanoinfer.engine.control import EngineControl
from nanoinfer.engine.input_processor import InputProcessor
from nanoinfer.engine.stats import log_step
from nanoinfer.engine.tiers import host_tier_for
from nanoinfer.errors import EngineClosedError, QueueFullError
from nanoinfer.model.layers.logits_processor import LogitsOutput
from nanoinfer.model.lora.manager import Adapters
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.outputs import FinishReason, RequestOutput
from nanoinfer.requests.request import Prompt, Request, params_or_default
from nanoinfer.requests.request_builder import RequestBuilder
from nanoinfer.requests.request_group import OpenRequests, RequestGroup, Update
from nanoinfer.requests.tokenizer import Tokenizer
from nanoinfer.sampling.grammar.compiler import Grammars
from nanoinfer.sampling.sampler import Sampler
from nanoinfer.sampling_params import SamplingParams
from nanoinfer.scheduler.batch import Batch
from nanoinfer.scheduler.prompt_logprobs import gather_prompt_logprobs
from nanoinfer.speculative.load import scheduler_for


class Engine(EngineControl):
    """Serves one model to many requests at once. All work is done inside `step()`.

    A plain object for one thread: drive it yourself (`add_request`, `step`), or leave that to `loop`, the thread behind an
    LLM, an AsyncEngine and a server (see engine_loop.py). Everything but `step` may be called from any thread, and waits
    for the current step to end. A manual step while the loop has work is a RuntimeError.

    When the model's forward pass or the sampler raises, the requests of that pass end. When anything else in a step raises
    (a bug, or Ctrl-C in a manual step), nobody knows any more who owns which slot. Then the engine resets: all requests
    end with the error, tree and pools are emptied, and it serves on.

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
        self.open_requests = OpenRequests()
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
        self.cache.next_tier = host_tier_for(config, self.cache, self.scheduler)
        self._input_processor = InputProcessor(
            config, self.cache, self.builder, self.grammars, self.adapters, clock, self._check_queue
        )

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
        request = Request(prompt, params_or_default(params), extra_key, timeout_s, name, adapter)
        return self.submit(self.prepare(request))

    def prepare(self, request: Request) -> RequestGroup:
        """Do all of `add_request` except queueing: check the request and build its Reqs. `submit_all` can then queue
        several requests, all or none."""
        self.check_process()
        return self.open_requests.expect(self._input_processor.prepare(request))

    def check_arguments(self, request: Request) -> None:
        """Check all of a request but its prompt: for a call that has no prompts. Errors as in `add_request`."""
        self._input_processor.check_arguments(request)

    def submit(self, group: RequestGroup) -> int:
        """Queue what `prepare` returned, and return its request id. Errors as in `submit_all`."""
        return self.submit_all([group])[0]

    def submit_all(self, groups: Sequence[RequestGroup]) -> list[int]:
        """Queue what `prepare` returned, all or none, and return the request ids.

        Raises QueueFullError, EngineClosedError, or ValueError for what was submitted before. None is queued then.
        """
        with self.visit():
            self._check_queue(sum(len(group.reqs) for group in groups))
            self._input_processor.check_adapters(groups)
            self.open_requests.check_expected(groups)
            self.change(lambda: self._queue(groups))
        return [group.request_id for group in groups]

    def _queue(self, groups: Sequence[RequestGroup]) -> None:
        self.open_requests.add(groups, self._clock())
        for req in [req for group in groups for req in group.reqs]:
            self.scheduler.add(req)

    def abort(self, request_id: int) -> RequestOutput | None:
        """End a request now, whatever its state, and return its last output.

        None when the request is unknown, or when it has ended and its last output was delivered, which can happen just
        before the abort.
        """

        def end() -> Sequence[RequestOutput]:
            self.end([request_id], FinishReason.ABORT, "aborted")
            return self.open_requests.withdraw(request_id)

        outputs = self.end_by(end)
        return outputs[0] if outputs else None

    def has_unfinished(self) -> bool:
        """True while `step()` has something to do or to deliver."""
        with self.visit():
            return bool(self.open_requests) or self.has_work() or self._unsettled is not None

    def has_work(self) -> bool:
        """True while a step would compute or end something. A paused request is no work until its deadline."""
        return bool(self.scheduler.waiting or self.scheduler.running) or self.seconds_to_deadline() == 0

    def seconds_to_deadline(self) -> float | None:
        """Seconds until the earliest deadline of an open request: 0 when it has passed, None when there is none."""
        with self.visit():
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

        RuntimeError while `loop` has work. It raises whatever a pass does; the class says what happens to the requests
        then. Those that have ended are among what the next step returns, with the error (`RequestOutput.error`). Requests
        whose `timeout_s` has passed end before the step's first pass; if it passes later in the step, nothing is
        interrupted.
        """
        self.check_process()
        self._check_manual_step()  # at once, and again when the lock is had
        self.let_others_in()
        with self.lock:
            self._check_manual_step()
            return self.deliver(self.make_step())

    def _check_manual_step(self) -> None:
        if self.loop is not None and self.loop.has_work():
            raise RuntimeError(
                "this engine's own thread is serving requests of an LLM or an AsyncEngine, and steps the engine: wait "
                "until they have ended, or use LLM.generate, LLM.stream or an AsyncEngine, from any thread"
            )

    def make_step(self) -> list[Update]:
        """`step`, for whoever has the lock: what is new, of which outputs can be made until the next step."""
        return self.change(self._passes)

    def _passes(self) -> list[Update]:
        with self.around_step():
            started = self._clock()
            if overdue := self.open_requests.overdue(started):
                self.end(overdue, FinishReason.TIMEOUT, "timed_out")
            goes_on = True
            while goes_on:  # for several passes only with num_scheduler_steps > 1
                retractions, output_tokens = self.scheduler.retractions, self.scheduler.output_tokens
                batch = self._one_pass()
                if batch is not None:
                    seconds = self._clock() - started
                    self.meter.add(batch, self.scheduler.output_tokens - output_tokens, seconds)
                    retracted = self.scheduler.retractions - retractions
                    log_step(batch, self.scheduler, self.meter, self.model_runner, retracted, seconds)
                started, goes_on = self._clock(), self.scheduler.passes_left > 0
            return self.open_requests.deliver_updates()

    def _one_pass(self) -> Batch | None:
        """Schedule → run the model → sample → process → collect. None when there is nothing to do."""
        batch = self.last_batch = self._schedule()
        if batch is None:
            return None
        try:
            output = self.model_runner.forward_batch(batch)
            token_ids, logprobs = self._sample(batch, output)
        except BaseException as error:
            self._end_pass(error)
            raise
        self.scheduler.process_batch_result(batch, token_ids, logprobs)
        self.open_requests.collect(batch.sampled_reqs)
        return batch

    def _schedule(self) -> Batch | None:
        try:
            return self.scheduler.schedule()
        except BaseException as error:
            if error is self.scheduler.fetch_failure:
                self._end_pass(error)
            raise

    def _end_pass(self, error: BaseException) -> None:
        """The model or the sampler has raised, and nothing else has changed: only the requests of the pass end, because
        their K/V may be missing. All requests end if the runner is broken."""
        failed = dict.fromkeys(req.request_id for req in self.scheduler.planned)
        self.end(failed, FinishReason.ABORT, "failed", error)
        if self.model_runner.broken is not None:
            self.end(list(self.open_requests.groups), FinishReason.ABORT, "failed", self.model_runner.broken)
        self._contained = error

    def _sample(self, batch: Batch, output: LogitsOutput) -> tuple[list[int], list[dict[int, float] | None]]:
        """The next token of each of `batch.logits_owners`, and the log-probabilities that they want."""
        if output.prompt_logprobs is not None:
            gather_prompt_logprobs(batch, output)
        reqs = batch.logits_owners
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
