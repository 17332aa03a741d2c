"""InputProcessor: checks a request, compiles its grammar and builds its Reqs, before it is queued."""

from collections.abc import Callable, Sequence
from itertools import count

import numpy as np

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.config import EngineConfig
from nanoinfer.errors import AdapterError, InvalidRequestError
from nanoinfer.model.lora.adapter import Adapter
from nanoinfer.model.lora.manager import Adapters
from nanoinfer.requests.request import Request
from nanoinfer.requests.request_builder import RequestBuilder, replay
from nanoinfer.requests.request_group import RequestGroup
from nanoinfer.sampling.grammar.compiler import Grammars, NewMatcher


class InputProcessor:
    """Prepares the requests of one engine, from any thread. `check_queue(n)` raises if no n completions may be queued."""

    def __init__(
        self,
        config: EngineConfig,
        cache: CacheManager,
        builder: RequestBuilder,
        grammars: Grammars,
        adapters: Adapters,
        clock: Callable[[], float],
        check_queue: Callable[[int], None],
    ):
        self._config, self._cache, self._builder, self._grammars = config, cache, builder, grammars
        self._adapters, self._clock, self._check_queue = adapters, clock, check_queue
        self._ids = count()

    def prepare(self, request: Request) -> RequestGroup:
        """Check the request and build its Reqs. InvalidRequestError when it can never be served; what `check_queue`
        raises."""
        most = self._config.max_total_tokens
        request, prompt_ids = self._builder.check(request, self._config.max_context_len, most)
        self._check_pool(prompt_ids, request)
        self._check_queue(request.params.n)
        new_matcher, timeout_s = self._prepare_grammar(request)
        adapter = self._find_adapter(request)
        request_id = next(self._ids)
        reqs = self._builder.build(request_id, prompt_ids, request.params, request.extra_key, adapter, new_matcher)
        if len(request.output_ids):
            replay(reqs[0], request.output_ids, request.name)
        return RequestGroup(request_id, reqs, timeout_s, request.prompt)

    def check_arguments(self, request: Request) -> None:
        """Check all of a request but its prompt: for a call that has no prompts. Errors as in `prepare`."""
        self._builder.check_arguments(request)
        self._find_adapter(request)

    def check_adapters(self, groups: Sequence[RequestGroup]) -> None:
        """A request may have been prepared before its adapter was unloaded: InvalidRequestError."""
        for adapter in {group.reqs[0].adapter for group in groups} - {None}:
            if self._adapters.get(adapter.name) is not adapter:
                raise InvalidRequestError(f"adapter={adapter.name!r}: has been unloaded since the request was prepared")

    def _prepare_grammar(self, request: Request) -> tuple[NewMatcher | None, float | None]:
        """What makes the request's matchers, and how much of its `timeout_s` is left when its grammar is compiled."""
        if request.params.grammar_field is None:
            return None, request.timeout_s
        began = self._clock()
        new_matcher = self._grammars.prepare(request.params, request.name, request.timeout_s)
        if request.timeout_s is None:
            return new_matcher, None
        return new_matcher, max(request.timeout_s - (self._clock() - began), 0.0)

    def _find_adapter(self, request: Request) -> Adapter | None:
        if request.adapter is None:
            return None
        try:
            return self._adapters.find(request.adapter)
        except AdapterError as error:
            raise InvalidRequestError(f"{request.name}: {error}") from error

    def _check_pool(self, prompt_ids: np.ndarray, request: Request) -> None:
        slots = self._cache.whole_pages(len(prompt_ids) + request.params.max_new_tokens - 1)
        if slots > self._cache.token_to_kv_pool.size:
            raise InvalidRequestError(
                f"{request.name}: {len(prompt_ids)} prompt tokens + max_new_tokens={request.params.max_new_tokens} need "
                f"{slots} slots: must not exceed max_total_tokens={self._cache.token_to_kv_pool.size}"
            )
