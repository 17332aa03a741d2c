"""RequestBuilder: checks what callers ask for and builds Reqs from it."""

import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np

from nanoinfer.errors import ContextLengthError, InvalidRequestError
from nanoinfer.requests.chat import Messages
from nanoinfer.requests.req import Req
from nanoinfer.requests.request import Prompt, Request, check_extra_key, got
from nanoinfer.requests.seeds import derived_seed
from nanoinfer.requests.tokenizer import IncrementalDetokenizer, Tokenizer, check_length
from nanoinfer.requests.tool_calls.registry import HERMES, format_of, reasoning_of
from nanoinfer.requests.tool_calls.reply import ReplyParser
from nanoinfer.sampling_params import Default, SamplingParams


class RequestBuilder:
    """It knows a model's vocabulary, end tokens and tokenizer, but nothing of pools or scheduling.

    `random_seed` makes requests without a seed of their own repeatable; None takes random seeds from the system.
    `sampling_defaults`: the checkpoint's, by field of SamplingParams.
    """

    def __init__(
        self,
        vocab_size: int,
        eos_token_ids: Iterable[int] = (),
        tokenizer: Tokenizer | None = None,
        random_seed: int | None = None,
        sampling_defaults: Mapping[str, float] | None = None,
    ):
        self.vocab_size, self.tokenizer = vocab_size, tokenizer
        # Some configs name an end token that does not exist (-1, or beyond the vocabulary). It can never be sampled.
        self.eos_token_ids = frozenset(token for token in eos_token_ids if 0 <= token < vocab_size)
        self.sampling_defaults = dict(sampling_defaults or {})
        # The tokens that are no text: the tokenizer's special ones, and the end tokens even if they are not flagged so.
        self.special_ids = self.eos_token_ids | (frozenset() if tokenizer is None else tokenizer.special_ids)
        self._rng = np.random.default_rng(random_seed)

    def check(self, request: Request, max_context_len: int, most: int | None = None) -> tuple[Request, np.ndarray]:
        """Check a request. Returns it with its `max_new_tokens` and the checkpoint's sampling defaults where it gives none,
        and its prompt's token ids, int64 `[prompt_len]`.

        If `max_new_tokens` is None, it is what is left of the context, or of `most` tokens in all. InvalidRequestError
        naming a field.
        """
        prompt_ids = self.prompt_ids(request.prompt, request.name, max_context_len)
        self.check_arguments(request)
        params = request.params
        taken: dict[str, Any] = {
            name: value for name, value in self.sampling_defaults.items() if isinstance(getattr(params, name), Default)
        }
        if params.max_new_tokens is None:
            taken["max_new_tokens"] = max(min(max_context_len, most or max_context_len) - len(prompt_ids), 1)
        if taken:
            try:
                request = replace(request, params=replace(params, **taken))
            except ValueError as error:  # n with the checkpoint's temperature, or min_new_tokens with what is left
                raise InvalidRequestError(f"{request.name}: {error}") from error
        self.check_context(prompt_ids, request.params, max_context_len, request.name)
        return request, prompt_ids

    def prompt_ids(self, prompt: Prompt, name: str = "prompt", max_context_len: int | None = None) -> np.ndarray:
        """Token ids of a prompt, int64 `[prompt_len]`. InvalidRequestError when it is empty, is neither text nor token ids,
        has an id outside the vocabulary, or is text that is too long for any `max_context_len` tokens. `name` is what the
        message calls the prompt."""
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise InvalidRequestError(f"{name}: is text, but this model has no tokenizer files; give token ids")
            if not prompt:
                raise InvalidRequestError(f"{name}: is empty")
            check_length(prompt, max_context_len, self.tokenizer, name)
            try:
                prompt = self.tokenizer.encode(prompt)
            except ValueError as error:
                raise InvalidRequestError(f"{name}: {error}") from error
        try:
            ids = np.asarray(prompt)
        except (TypeError, ValueError, RuntimeError):  # lists of different lengths, tensors that numpy cannot hold
            ids = np.array(None)
        if not ids.size:
            raise InvalidRequestError(f"{name}: is empty")
        if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
            raise InvalidRequestError(f"{name}: must be text or a list of token ids, {got(prompt)}")
        outside = ids[(ids < 0) | (ids >= self.vocab_size)]
        if len(outside):
            raise InvalidRequestError(f"{name}: token id {outside[0]}: must be in 0..{self.vocab_size - 1}")
        return ids.astype(np.int64)

    def chat_prompt(
        self, messages: Messages, template_kwargs: Mapping[str, Any] | None = None, max_context_len: int | None = None
    ) -> list[int]:
        """Token ids of a conversation up to the assistant's next turn. Arguments and errors as in `Tokenizer.encode_chat`;
        ValueError if there is no tokenizer."""
        if self.tokenizer is None:
            raise ValueError("chat: this model has no tokenizer files; use generate with token ids")
        return self.tokenizer.encode_chat(messages, template_kwargs, max_context_len)

    def check_arguments(self, request: Request) -> None:
        """Check all of a request but its prompt: InvalidRequestError for what no model can do, or what the vocabulary or
        tokenizer of this one cannot."""
        params, timeout_s, name = request.params, request.timeout_s, request.name
        if not isinstance(params, SamplingParams):
            raise InvalidRequestError(f"{name}: params={params!r}: must be SamplingParams or a mapping of its fields")
        check_extra_key(request.extra_key, f"{name}: extra_key")
        is_number = isinstance(timeout_s, Real) and not isinstance(timeout_s, bool)
        if timeout_s is not None and not (is_number and 0 < timeout_s <= sys.float_info.max):
            raise InvalidRequestError(f"{name}: timeout_s={timeout_s!r}: must be None or a (finite) number above 0")
        if params.stop and self.tokenizer is None:
            raise InvalidRequestError(
                f"{name}: stop={params.stop!r}: needs a tokenizer, but this model has none", "stop"
            )
        for field in ("logprobs", "prompt_top_logprobs"):
            if (count := getattr(params, field) or 0) > self.vocab_size:
                raise InvalidRequestError(f"{name}: {field}={count}: must be at most {self.vocab_size}", field)
        for field, tokens in (("stop_token_ids", params.stop_token_ids), ("logit_bias", params.logit_bias or ())):
            outside = [token for token in tokens if token >= self.vocab_size]
            if outside:
                raise InvalidRequestError(
                    f"{name}: {field}: token id {outside[0]}: must be in 0..{self.vocab_size - 1}", field
                )
        forbidden = {token for token, bias in (params.logit_bias or {}).items() if bias == -np.inf}
        if params.min_new_tokens:
            forbidden |= self._stop_token_ids(params)
        if len(forbidden) >= self.vocab_size:
            raise InvalidRequestError(
                f"{name}: logit_bias and min_new_tokens={params.min_new_tokens} forbid all {self.vocab_size} tokens",
                "logit_bias",
            )

    def check_context(
        self, prompt_ids: np.ndarray, params: SamplingParams, max_context_len: int, name: str = "prompt"
    ) -> None:
        """InvalidRequestError when prompt and output together could become longer than the context."""
        total = len(prompt_ids) + params.max_new_tokens
        if total > max_context_len:
            raise ContextLengthError(
                f"{name}: {len(prompt_ids)} prompt tokens + max_new_tokens={params.max_new_tokens} = {total} tokens: "
                f"must not exceed max_context_len={max_context_len}",
                "max_new_tokens",
            )

    def build(
        self,
        request_id: int,
        prompt_ids: np.ndarray,
        params: SamplingParams,
        extra_key: Hashable = None,
        adapter: Any = None,
        new_matcher: Callable[[frozenset[int]], Any] | None = None,
    ) -> list[Req]:
        """Build one Req per completion (`params.n`). Each has its own seed for its random numbers, and its own matcher if
        `new_matcher` (stop tokens → matcher) makes them."""
        seed = int(self._rng.integers(2**63)) if params.seed is None else params.seed
        stops = self._stop_token_ids(params)
        one_call = not params.parallel_tool_calls and params.tool_calls is None  # else the grammar ends
        reqs = []
        for i in range(params.n):
            matcher = None if new_matcher is None else new_matcher(stops)
            detokenizer = None
            if self.tokenizer is not None:
                # The text of a grammar is what the grammar has read, whatever the tokenizer does to the start of a text.
                detokenizer = IncrementalDetokenizer(
                    self.tokenizer if matcher is None else matcher.vocabulary,
                    prompt_ids if matcher is None else (),
                    params.stop,
                    params.skip_special_tokens,
                    params.include_stop_str_in_output,
                    self.tokenizer.special_ids if params.ignore_eos else self.special_ids,
                    self._call_parser(prompt_ids) if one_call else None,
                )
            if i == 1:
                # The first completion computes them for all.
                params = replace(params, prompt_logprobs=False, prompt_top_logprobs=0)
            own_seed = derived_seed(seed, i)
            reqs.append(Req(request_id, prompt_ids, params, stops, own_seed, extra_key, detokenizer, adapter, matcher))
        return reqs

    def _call_parser(self, prompt_ids: np.ndarray) -> ReplyParser:
        reasoning = reasoning_of(self.tokenizer)
        is_thinking = reasoning is not None and reasoning.state(self.tokenizer, prompt_ids) == "open"
        return ReplyParser(format_of(self.tokenizer) or HERMES, reasoning, is_thinking)

    def _stop_token_ids(self, params: SamplingParams) -> frozenset[int]:
        return frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self.eos_token_ids)


def replay(req: Req, output_ids: Sequence[int], name: str = "prompt") -> None:
    """Append `output_ids`, which another engine has sampled, to a new `req`, as if passes of this one had.
    InvalidRequestError when one of them, or the text that they make, ends the request.

    What a next token depends on is all in its Req, and token `i` of an output takes the request's random number `i`
    wherever it is sampled: so both engines together sample what one alone would have. The Req then looks like one that was
    retracted: its first EXTEND computes prompt and known output together. Its log-probabilities of these tokens are
    empty, and its pieces begin behind them.
    """
    for i, token in enumerate(output_ids):
        req.append(int(token))
        if req.finished:
            raise InvalidRequestError(f"{name}: output_ids: the request ends with token {i} of {len(output_ids)}")
        if req.params.logprobs is not None:
            req.output_logprobs.append({})
    req.given_chars, req.given_tokens = len(req.text), req.num_output_tokens
