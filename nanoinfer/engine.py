"""Engine: requests in, tokens out, one step at a time."""

import time
from collections.abc import Hashable, Sequence
from itertools import count
from typing import Any

import numpy as np

from nanoinfer.batch import Batch
from nanoinfer.cache_manager import CacheManager
from nanoinfer.config import EngineConfig
from nanoinfer.errors import InvalidRequestError
from nanoinfer.input_metadata import ForwardMode
from nanoinfer.model_runner import ModelRunner
from nanoinfer.outputs import RequestGroup, RequestOutput
from nanoinfer.radix_cache import RadixCache
from nanoinfer.req import Req
from nanoinfer.request_builder import Prompt, RequestBuilder
from nanoinfer.sampler import Sampler
from nanoinfer.sampling_params import SamplingParams
from nanoinfer.scheduler import Scheduler
from nanoinfer.tokenizer import Tokenizer


class Engine:
    """Serves one model to many requests at once. Single-threaded: nothing happens except inside `step()`."""

    def __init__(
        self,
        model_runner: ModelRunner,
        config: EngineConfig,
        vocab_size: int,
        eos_token_ids: Sequence[int] = (),
        tokenizer: Tokenizer | None = None,
    ):
        self.model_runner, self.config = model_runner, config
        self.builder = RequestBuilder(vocab_size, eos_token_ids, tokenizer, config.random_seed)
        self.radix_cache = RadixCache(
            model_runner.req_to_token_pool,
            model_runner.token_to_kv_pool,
            config.page_size,
            config.eviction_policy,
            config.disable_radix_cache,
        )
        self.cache = CacheManager(model_runner.req_to_token_pool, model_runner.token_to_kv_pool, self.radix_cache)
        self.scheduler = Scheduler(config, self.cache)
        self.sampler = Sampler()
        self.last_batch: Batch | None = None  # the pass of the last step, to look at
        self._groups: dict[int, RequestGroup] = {}  # the unfinished ones
        self._undelivered: dict[int, RequestOutput] = {}
        self._ids = count()
        self._counts = dict.fromkeys(
            ("extend_steps", "decode_steps", "finished", "aborted", "prompt_tokens", "cached_tokens", "output_tokens"),
            0,
        )

    # --- requests ------------------------------------------------------------------------------------------------

    def add_request(
        self, prompt: Prompt, params: SamplingParams | None = None, extra_key: Hashable = None, name: str = "prompt"
    ) -> int:
        """Queue a prompt (text or token ids); returns the request id that outputs carry.

        `extra_key`: only requests with an equal one share cached prefixes. `name`: what error messages call the prompt.
        Raises InvalidRequestError (a ValueError) when it can never be served; nothing is queued then.
        """
        return self.submit(self.prepare(prompt, params, extra_key, name))

    def prepare(
        self, prompt: Prompt, params: SamplingParams | None = None, extra_key: Hashable = None, name: str = "prompt"
    ) -> RequestGroup:
        """`add_request` without queueing: check everything and make the request. For all-or-nothing batches."""
        params = SamplingParams() if params is None else params
        prompt_ids = self.builder.prompt_ids(prompt, name)
        self.builder.check_params(params, extra_key, name)
        self.builder.check_context(prompt_ids, params, self.config.max_context_len, name)
        self._check_pool(prompt_ids, params, name)
        request_id = next(self._ids)
        return RequestGroup(request_id, self.builder.build(request_id, prompt_ids, params, extra_key))

    def submit(self, group: RequestGroup) -> int:
        """Queue what `prepare` made; returns its request id."""
        self._groups[group.request_id] = group
        now = time.perf_counter()
        for req in group.reqs:
            req.arrival_time = now
            self.scheduler.add(req)
        return group.request_id

    def abort(self, request_id: int) -> RequestOutput | None:
        """End a request now, waiting or running; returns its last output.

        None when it is unknown or has ended and that has been delivered: a request may end just before its abort.
        """
        undelivered = self._undelivered.pop(request_id, None)
        group = self._groups.pop(request_id, None)
        if group is None:
            return undelivered
        self.scheduler.abort(group.reqs)
        self._counts["aborted"] += 1
        return group.output()

    def has_unfinished(self) -> bool:
        """True while `step()` has something to do or to deliver."""
        return bool(self._groups or self._undelivered)

    def is_unfinished(self, request_id: int) -> bool:
        """True while this request waits or runs."""
        return request_id in self._groups

    # --- the step ------------------------------------------------------------------------------------------------

    def step(self) -> list[RequestOutput]:
        """One forward pass: schedule → forward → sample → process. Returns the state of every request in it.

        When it raises, the requests of the pass are aborted and their slots freed; the others are untouched. The next
        step tells of the aborted ones.
        """
        batch = self.last_batch = self.scheduler.schedule()
        if batch is None:
            return self._deliver([])
        try:
            logits, _ = self.model_runner.forward(batch, batch.forward_mode, batch.return_normalized_logprob)
            token_ids = self.sampler.sample(logits, batch.reqs)
            logprobs = self.sampler.logprobs(logits, token_ids, batch.reqs)
            self.scheduler.process_batch_result(batch, token_ids.tolist(), logprobs)
        except BaseException:
            failed = [self.abort(request_id) for request_id in dict.fromkeys(req.request_id for req in batch.reqs)]
            self.deliver_later([output for output in failed if output is not None])
            raise
        self._count(batch.forward_mode, batch.reqs)
        return self._deliver(self._outputs(batch.reqs))

    def deliver_later(self, outputs: Sequence[RequestOutput]) -> None:
        """Give back outputs of `step()` that were somebody else's: the next `step()` returns the last of each request."""
        self._undelivered.update((output.request_id, output) for output in outputs)

    # --- looking at it -------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Counters since the start, and where requests and slots are now. `hit_rate` is cached / prompt tokens."""
        pool, tree = self.cache.token_to_kv_pool, self.radix_cache
        prompt_tokens = self._counts["prompt_tokens"]
        return {
            "waiting": len(self.scheduler.waiting),
            "running": len(self.scheduler.running),
            "total_slots": pool.size,
            "free_slots": pool.available_size(),
            "evictable_slots": tree.evictable_size(),
            "protected_slots": tree.protected_size(),
            "hit_rate": self._counts["cached_tokens"] / prompt_tokens if prompt_tokens else 0.0,
            **self._counts,
        }

    def check_integrity(self) -> None:
        """RuntimeError unless every slot and row has exactly one owner: `free + tree + requests == N`."""
        self.cache.check_integrity(self.scheduler.running)

    def flush_cache(self) -> int:
        """Free every cached token that no running request relies on; returns how many."""
        return self.radix_cache.evict(self.radix_cache.evictable_size())

    # --- checks and counts ---------------------------------------------------------------------------------------

    def _check_pool(self, prompt_ids: np.ndarray, params: SamplingParams, name: str) -> None:
        slots = self.cache.whole_pages(len(prompt_ids) + params.max_new_tokens - 1)
        if slots > self.cache.token_to_kv_pool.size:
            raise InvalidRequestError(
                f"{name}: {len(prompt_ids)} prompt tokens + max_new_tokens={params.max_new_tokens} need {slots} slots: "
                f"must not exceed max_total_tokens={self.cache.token_to_kv_pool.size}"
            )

    def _count(self, mode: ForwardMode, reqs: Sequence[Req]) -> None:
        counts = self._counts
        counts["output_tokens"] += len(reqs)
        if mode is ForwardMode.EXTEND:
            counts["extend_steps"] += 1
            counts["prompt_tokens"] += sum(req.prompt_len for req in reqs)
            counts["cached_tokens"] += sum(req.cached_tokens for req in reqs)
        else:
            counts["decode_steps"] += 1

    def _outputs(self, reqs: Sequence[Req]) -> list[RequestOutput]:
        groups = [self._groups[request_id] for request_id in dict.fromkeys(req.request_id for req in reqs)]
        for group in groups:
            if group.finished:
                del self._groups[group.request_id]
                self._counts["finished"] += 1
        return [group.output() for group in groups]

    def _deliver(self, outputs: Sequence[RequestOutput]) -> list[RequestOutput]:
        """`outputs` and those left for later, the latest of each request."""
        self.deliver_later(outputs)
        delivered, self._undelivered = list(self._undelivered.values()), {}
        return delivered
