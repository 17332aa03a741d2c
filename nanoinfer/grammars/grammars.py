"""Grammars: what an engine needs to serve requests with grammars."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from nanoinfer.errors import InvalidRequestError
from nanoinfer.grammars.compiler import MAX_SECONDS, Compiler
from nanoinfer.grammars.grammar import Grammar
from nanoinfer.grammars.making import MadeOnce, Making
from nanoinfer.grammars.matcher import Matcher
from nanoinfer.grammars.refusal import Refusal
from nanoinfer.grammars.vocabulary import Vocabulary
from nanoinfer.requests.sampling_params import SamplingParams

NewMatcher = Callable[[frozenset[int]], Matcher]  # a request's stop tokens → a matcher at the start of its grammar


class Grammars:
    """The grammars of one model. May be used by any thread; the vocabulary is read when the first grammar comes. `clock`
    returns seconds."""

    def __init__(
        self,
        tokenizer: Any,
        vocab_size: int,
        end_ids: Iterable[int] = (),
        clock: Callable[[], float] = time.monotonic,
    ):
        self._tokenizer, self._vocab_size, self._end_ids, self._clock = tokenizer, vocab_size, sorted(end_ids), clock
        self._compiler: MadeOnce[Compiler] = MadeOnce(self._make_compiler, clock)

    def prepare(
        self, params: SamplingParams, name: str = "prompt", timeout_s: float | None = None
    ) -> NewMatcher | None:
        """Compile what `params` ask for; the result makes one matcher per completion. None if they ask for no grammar.

        InvalidRequestError naming the field, with the reason, when it cannot be compiled, not within `timeout_s` or
        MAX_SECONDS, or when the model's tokenizer cannot serve grammars. What the tokenizer raises meanwhile ends only this
        request, like what a signal handler raises.
        """
        grammar = Grammar.of(params)
        if grammar is None:
            return None
        limit = MAX_SECONDS if timeout_s is None else min(timeout_s, MAX_SECONDS)
        end = self._clock() + limit
        try:
            compiler = self._compiler.get(limit)
            return compiler.compile(grammar, end - self._clock()).matcher
        except Refusal as error:
            raise InvalidRequestError(f"{name}: {grammar.kind}: {error}") from error
        except TimeoutError as error:
            given = "" if timeout_s is None or timeout_s > MAX_SECONDS else "timeout_s="
            why = f"compiling it takes longer than {given}{limit:g} seconds"
            raise InvalidRequestError(f"{name}: {grammar.kind}: {why}") from error

    def _make_compiler(self, making: Making[Compiler]) -> Compiler:
        if self._tokenizer is None:
            raise Refusal("needs a tokenizer, but this model has none")
        try:
            vocabulary = Vocabulary(self._tokenizer, self._vocab_size, self._end_ids)
        except ValueError as error:
            raise Refusal(f"this model's tokenizer cannot serve grammars: {error}") from error
        assert vocabulary.compiled is not None  # now, rather than in the thread of the first grammar
        return Compiler(vocabulary, self._clock)
