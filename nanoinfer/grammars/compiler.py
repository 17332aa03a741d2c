"""Compiler: turns grammars into matchers, with llguidance, in bounded time and memory."""

import json
import threading
from collections import OrderedDict
from typing import Any

import numpy as np

from nanoinfer.grammars.grammar import Grammar
from nanoinfer.grammars.json_keywords import keyword_hint
from nanoinfer.grammars.json_schemas import prepared_schema
from nanoinfer.grammars.limits import MAX_CHOICES, MAX_LENGTH, check_lark, check_regex
from nanoinfer.grammars.matcher import Matcher
from nanoinfer.grammars.number_limit import NumberLimit
from nanoinfer.grammars.tool_calls import calls_grammar
from nanoinfer.grammars.vocabulary import Vocabulary
from nanoinfer.signals import uninterrupted

MAX_CACHED = 64  # compiled grammars
LIMITS: dict[
    str, Any
] = {  # of llguidance, which says what they count; below its own where memory would grow to gigabytes
    "initial_lexer_fuel": 200_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 200_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "verbose_errors": False,
}
COMPACT_JSON: Any = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": False,
    "coerce_one_of": False,
    "lenient": False,
    "json_allowed_escapes": 'nrbtf\\"',  # not \u0061, or it would be a key that the schema does not know as "a"
}


class Compiler:
    """Compiles each grammar once, as long as it is among the MAX_CACHED that were used last. May be used by any thread."""

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        self._cache: OrderedDict[Grammar, _Compiled] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, grammar: Grammar) -> "_Compiled":
        """The compiled grammar. ValueError with the reason when it cannot be compiled."""
        with self._lock:
            compiled = self._cache.setdefault(grammar, _Compiled(grammar, self.vocabulary))
            self._cache.move_to_end(grammar)
            if len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
        compiled.compile()
        return compiled


class _Compiled:
    """One grammar, and what it compiles to."""

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary):
        self._grammar, self._vocabulary = grammar, vocabulary
        self._lock = threading.Lock()  # llguidance's objects must not be used by two threads at once
        self._start: Any = None  # a matcher of llguidance at the start of the grammar
        self._refusal: str | None = None

    def compile(self) -> None:
        """Compile it if it is not. ValueError with the reason when that is impossible."""
        with self._lock:
            if self._start is None and self._refusal is None:
                try:
                    with (
                        uninterrupted()
                    ):  # what a handler raises in the tokenizer would pass for the compiler's failure
                        self._start = _compile(self._grammar, self._vocabulary)
                except ValueError as error:
                    self._refusal = str(error) + self._hint()
            if self._refusal is not None:
                raise ValueError(self._refusal)

    def _hint(self) -> str:
        """What may have been meant instead of what is refused."""
        is_schema = self._grammar.kind == "json_schema" and len(self._grammar.text) <= MAX_LENGTH
        return keyword_hint(self._grammar.text) if is_schema else ""

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        """A matcher at the start, for a request that ends by one of `stop_token_ids`.

        Those of them that are the model's end tokens or special tokens are allowed when the output is complete. One that
        stands for text is allowed where its text is.
        """
        vocabulary = self._vocabulary
        ends = {token for token in stop_token_ids if token in vocabulary.end_ids or token in vocabulary.special}
        limit = NumberLimit(vocabulary) if self._grammar.kind in ("json_schema", "tool_calls") else None
        with self._lock:
            return Matcher(self._start.deep_copy(), vocabulary, ends, limit)


def _compile(grammar: Grammar, vocabulary: Vocabulary) -> Any:
    from llguidance import LLMatcher, LLParserLimits

    if len(grammar.text) > MAX_LENGTH:
        raise ValueError(f"has {len(grammar.text)} characters: must not exceed {MAX_LENGTH}")
    if grammar.kind == "regex":
        check_regex(grammar.text)
        text = LLMatcher.grammar_from_regex(grammar.text)
    elif grammar.kind == "json_schema":
        schema = json.dumps(prepared_schema(grammar.text))
        text = LLMatcher.grammar_from_json_schema(schema, overrides=COMPACT_JSON)
    elif grammar.kind == "tool_calls":
        text = calls_grammar(grammar.text, COMPACT_JSON)
    elif grammar.kind == "grammar":
        check_lark(grammar.text)
        text = LLMatcher.grammar_from_lark(grammar.text)
    else:
        given = json.loads(grammar.text)
        if len(given) > MAX_CHOICES:
            raise ValueError(f"has {len(given)} choices: must not exceed {MAX_CHOICES}")
        choices = " | ".join(json.dumps(choice) for choice in given)
        text = LLMatcher.grammar_from_lark(f"start: {choices}")
    try:
        start = LLMatcher(vocabulary.compiled, text, log_level=0, limits=LLParserLimits(**LIMITS))
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # what code written in Rust raises when it fails
            raise
        raise ValueError(f"the compiler fails on it: {_reason(str(error))}") from error
    if start.is_error():
        raise ValueError(f"cannot be compiled: {_reason(start.get_error())}")
    _check_first_choice(Matcher(start.deep_copy(), vocabulary, ()))
    return start


def _check_first_choice(matcher: Matcher) -> None:
    """ValueError when the grammar cannot be followed up to its first choice. For some that no output matches, and for some
    that are too large, the compiler says so only here."""
    row = np.empty(matcher.words, dtype=np.int32)
    matcher.fill_mask(row)
    if not matcher.error and all(matcher.accept(token) for token in matcher.forced_tokens()):
        matcher.fill_mask(row)
    if matcher.error:
        raise ValueError(f"it is too large, or no output of this model matches it: {_reason(matcher.error)}")


def _reason(error: str) -> str:
    return " ".join(error.split())[:500]
