"""Grammars: what an engine needs to serve requests with grammars."""

import threading
from collections.abc import Callable, Iterable
from typing import Any

from nanoinfer.errors import InvalidRequestError
from nanoinfer.grammars.compiler import Compiler
from nanoinfer.grammars.grammar import Grammar
from nanoinfer.grammars.matcher import Matcher
from nanoinfer.grammars.vocabulary import Vocabulary
from nanoinfer.requests.sampling_params import SamplingParams

NewMatcher = Callable[[frozenset[int]], Matcher]  # a request's stop tokens → a matcher at the start of its grammar


class Grammars:
    """The grammars of one model. May be used by any thread; the vocabulary is read when the first grammar comes."""

    def __init__(self, tokenizer: Any, vocab_size: int, end_ids: Iterable[int] = ()):
        self._tokenizer, self._vocab_size, self._end_ids = tokenizer, vocab_size, sorted(end_ids)
        self._compiler: Compiler | None = None
        self._lock = threading.Lock()

    def prepare(self, params: SamplingParams, name: str = "prompt") -> NewMatcher | None:
        """Compile what `params` ask for; the result makes one matcher per completion. None if they ask for no grammar.

        InvalidRequestError naming the field, with the reason, when it cannot be compiled or when the model's tokenizer
        cannot serve grammars.
        """
        grammar = Grammar.of(params)
        if grammar is None:
            return None
        try:
            return self._get_compiler().compile(grammar).matcher
        except ValueError as error:
            raise InvalidRequestError(f"{name}: {grammar.kind}: {error}") from error

    def _get_compiler(self) -> Compiler:
        with self._lock:
            if self._compiler is None:
                if self._tokenizer is None:
                    raise ValueError("needs a tokenizer, but this model has none")
                try:
                    vocabulary = Vocabulary(self._tokenizer, self._vocab_size, self._end_ids)
                except ValueError as error:
                    raise ValueError(f"this model's tokenizer cannot serve grammars: {error}") from error
                self._compiler = Compiler(vocabulary)
            return self._compiler
