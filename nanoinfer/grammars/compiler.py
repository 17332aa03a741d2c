"""Compiler: turns grammars into matchers, with llguidance, in bounded time and memory."""

import json
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from nanoinfer.grammars.grammar import Grammar
from nanoinfer.grammars.json_keywords import keyword_hint
from nanoinfer.grammars.json_schemas import prepared_schema
from nanoinfer.grammars.lark import lark_grammar
from nanoinfer.grammars.limits import MAX_CHOICES, MAX_LENGTH, check_regex
from nanoinfer.grammars.making import MadeOnce, Making
from nanoinfer.grammars.matcher import Matcher, reason
from nanoinfer.grammars.number_limit import NumberLimit
from nanoinfer.grammars.refusal import Refusal
from nanoinfer.grammars.safe_sizes import is_safe
from nanoinfer.grammars.tool_calls import calls_grammar
from nanoinfer.grammars.trial import Trial
from nanoinfer.grammars.vocabulary import Vocabulary
from nanoinfer.threads.cache_locks import new_cache_lock

MAX_CACHED = 64  # compiled grammars
MAX_SECONDS = 30.0  # that a request waits for its grammar
STEPS = 8  # tokens that are written on arrival, as it is only then that some grammars turn out to be too large
# Of llguidance, which says what they count; below its own where memory would grow to gigabytes.
LIMITS: dict[str, Any] = {
    "max_items_in_row": 5_000,
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
    """Compiles each grammar once, as long as it is among the MAX_CACHED that were used last. May be used by any thread.
    `clock` returns seconds; `trial` makes a Trial."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        clock: Callable[[], float] = time.monotonic,
        trial: Callable[[str, dict[str, Any]], Trial] = Trial,
    ):
        self.vocabulary, self._clock, self._trial = vocabulary, clock, trial
        self._cache: OrderedDict[Grammar, _Compiled] = OrderedDict()
        self._lock = new_cache_lock()

    def compile(self, grammar: Grammar, seconds: float = MAX_SECONDS) -> "_Compiled":
        """The compiled grammar. Refusal with the reason when it cannot be compiled, TimeoutError if it is not in
        `seconds`. Signal handlers run while this waits."""
        new = _Compiled(grammar, self.vocabulary, self._clock, self._trial)
        with self._lock:
            compiled = self._cache.setdefault(grammar, new)
            self._cache.move_to_end(grammar)
            if len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
        compiled.compile(seconds)
        return compiled


@dataclass(frozen=True)
class _Start:
    """A grammar's matcher of llguidance, at the start."""

    state: Any
    can_roll_back: bool


class _Compiled:
    """One grammar, and what it compiles to."""

    def __init__(
        self,
        grammar: Grammar,
        vocabulary: Vocabulary,
        clock: Callable[[], float],
        trial: Callable[[str, dict[str, Any]], Trial],
    ):
        self._grammar, self._vocabulary, self._trial = grammar, vocabulary, trial
        self._lock = new_cache_lock()  # llguidance's objects must not be used by two threads at once
        self._made: MadeOnce[_Start | Refusal] = MadeOnce(self._make, clock)

    def compile(self, seconds: float) -> _Start:
        """Compile it if it is not. Errors as in `Compiler.compile`."""
        made = self._made.get(seconds)
        if isinstance(made, Refusal):
            raise Refusal(str(made))
        return made

    def _make(self, making: Making[Any]) -> _Start | Refusal:
        """Compile it, or find out why that is impossible. What else is raised is no verdict, and is not kept."""
        try:
            text = _text_for_compiler(self._grammar)
        except ValueError as error:
            return Refusal(str(error) + self._hint())
        if not is_safe(self._grammar):
            trial = self._trial(text, LIMITS)
            making.attempt(trial)
            if trial.verdict is not None:
                return trial.verdict
        start = _compile(text, self._vocabulary)
        return Refusal(str(start) + self._hint()) if isinstance(start, Refusal) else start

    def _hint(self) -> str:
        """What may have been meant instead of what is refused."""
        is_schema = self._grammar.kind == "json_schema" and len(self._grammar.text) <= MAX_LENGTH
        return keyword_hint(self._grammar.text) if is_schema else ""

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        """A matcher at the start, for a request that ends by one of `stop_token_ids`.

        Those of them that are special, as the model's end tokens are, are allowed when the output is complete. One that
        stands for text is allowed where its text is.
        """
        vocabulary, start = self._vocabulary, self.compile(MAX_SECONDS)
        ends = stop_token_ids & vocabulary.special
        limit = NumberLimit(vocabulary) if self._grammar.kind in ("json_schema", "tool_calls") else None
        with self._lock:
            state = start.state.deep_copy()
        return Matcher(state, vocabulary, ends, limit, start.can_roll_back)


def _text_for_compiler(grammar: Grammar) -> str:
    """What llguidance compiles for `grammar`. ValueError when it is too large, or cannot be compiled exactly."""
    from llguidance import LLMatcher

    if len(grammar.text) > MAX_LENGTH:
        raise ValueError(f"has {len(grammar.text)} characters: must not exceed {MAX_LENGTH}")
    if grammar.kind == "regex":
        check_regex(grammar.text)
        text: str = LLMatcher.grammar_from_regex(grammar.text)
    elif grammar.kind == "json_schema":
        schema = json.dumps(prepared_schema(grammar.text))
        text = LLMatcher.grammar_from_json_schema(schema, overrides=COMPACT_JSON)
    elif grammar.kind == "tool_calls":
        text = calls_grammar(grammar.text, COMPACT_JSON)
    elif grammar.kind == "grammar":
        text = lark_grammar(grammar.text, COMPACT_JSON)
    else:
        given = json.loads(grammar.text)
        if len(given) > MAX_CHOICES:
            raise ValueError(f"has {len(given)} choices: must not exceed {MAX_CHOICES}")
        choices = " | ".join(json.dumps(choice) for choice in given)  # of a terminal: its states are quicker than rules
        text = LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {choices}")
    return text


def _compile(text: str, vocabulary: Vocabulary) -> _Start | Refusal:
    """Raises what the tokenizer raises meanwhile."""
    from llguidance import LLMatcher, LLParserLimits

    try:
        with vocabulary.watched():
            start = LLMatcher(vocabulary.compiled, text, log_level=0, limits=LLParserLimits(**LIMITS))
    except UnicodeError as error:
        return Refusal(f"cannot be compiled: must be text that can be encoded as UTF-8: {error}")
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # what code written in Rust raises when it fails
            raise
        return Refusal(f"the compiler fails on it: {reason(str(error))}")
    if start.is_error():
        return Refusal(f"cannot be compiled: {reason(start.get_error())}")
    if failure := _failure(Matcher(start.deep_copy(), vocabulary, ())):
        return Refusal(f"it is too large, or no output of this model matches it: {reason(failure)}")
    return _Start(start, _can_roll_back(start.deep_copy(), vocabulary))


def _failure(matcher: Matcher) -> str:
    """Why the grammar cannot be followed for STEPS tokens, each an allowed one; empty if it can. For some that no output
    matches, and for some that are too large, the compiler says so only here."""
    row = np.empty(matcher.words, dtype=np.int32)
    for step in range(STEPS):
        allows_any = matcher.fill_mask(row)
        if matcher.tokenizer_error is not None:
            raise matcher.tokenizer_error
        if matcher.error or not allows_any:
            break
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        if not matcher.accept(int(allowed[step * 7919 % len(allowed)])):
            break
    return matcher.error


def _can_roll_back(state: Any, vocabulary: Vocabulary) -> bool:
    """Whether llguidance can take tokens back. It cannot where a Lark grammar has max_tokens=... or stop=..."""
    row = np.zeros(vocabulary.words, dtype=np.int32)
    with vocabulary.watched():
        state.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        for token in np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist():
            if token != vocabulary.end and state.consume_token(token):
                state.rollback(1)
                break
    return not state.is_error()
