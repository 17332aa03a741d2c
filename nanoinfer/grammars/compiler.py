"""Turns the grammars of requests into matchers, with llguidance, in bounded time and memory."""

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from nanoinfer.errors import InvalidRequestError
from nanoinfer.grammars.grammar import MAX_LENGTH, Grammar, Refusal
from nanoinfer.grammars.json_schemas import prepared_schema
from nanoinfer.grammars.lark import calls_grammar, lark_grammar
from nanoinfer.grammars.making import MadeOnce
from nanoinfer.grammars.matcher import Matcher, NumberLimit, reason
from nanoinfer.grammars.patterns import check_regex
from nanoinfer.grammars.trial import is_safe, tried
from nanoinfer.grammars.vocabulary import Vocabulary
from nanoinfer.requests.sampling_params import SamplingParams

MAX_CHOICES = 10_000  # of `choice`: as many take a tenth of a second to compile
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
        MAX_SECONDS, or when the model's tokenizer cannot serve grammars.
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

    def _make_compiler(self) -> "Compiler":
        if self._tokenizer is None:
            raise Refusal("needs a tokenizer, but this model has none")
        try:
            vocabulary = Vocabulary(self._tokenizer, self._vocab_size, self._end_ids)
        except ValueError as error:
            raise Refusal(f"this model's tokenizer cannot serve grammars: {error}") from error
        assert vocabulary.compiled is not None  # now, rather than in the thread of the first grammar
        return Compiler(vocabulary, self._clock)


class Compiler:
    """Compiles each grammar once, as long as it is among the MAX_CACHED that were used last. May be used by any thread.
    `clock` returns seconds; `trial`: see `tried`."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        clock: Callable[[], float] = time.monotonic,
        trial: Callable[[str, dict[str, Any]], Refusal | None] = tried,
    ):
        self.vocabulary, self._clock, self._trial = vocabulary, clock, trial
        self._cache: OrderedDict[Grammar, _Compiled] = OrderedDict()
        self._lock = threading.RLock()

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
        trial: Callable[[str, dict[str, Any]], Refusal | None],
    ):
        self._grammar, self._vocabulary, self._trial = grammar, vocabulary, trial
        self._lock = threading.RLock()  # llguidance's objects must not be used by two threads at once
        self._made: MadeOnce[_Start | Refusal] = MadeOnce(self._make, clock)

    def compile(self, seconds: float) -> _Start:
        """Compile it if it is not. Errors as in `Compiler.compile`."""
        made = self._made.get(seconds)
        if isinstance(made, Refusal):
            raise Refusal(str(made))
        return made

    def _make(self) -> _Start | Refusal:
        """Compile it, or find out why that is impossible. What is raised is no verdict, and is not kept."""
        try:
            text = _text_for_compiler(self._grammar)
        except ValueError as error:
            return Refusal(str(error))
        verdict = None if is_safe(self._grammar) else self._trial(text, LIMITS)
        return verdict or _compile(text, self._vocabulary)

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
    from llguidance import LLMatcher, LLParserLimits

    try:
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
        if matcher.error or not allows_any:
            break
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        if not matcher.accept(int(allowed[step * 7919 % len(allowed)])):
            break
    return matcher.error


def _can_roll_back(state: Any, vocabulary: Vocabulary) -> bool:
    """Whether llguidance can take tokens back. It cannot where a Lark grammar has max_tokens=... or stop=..."""
    row = np.zeros(vocabulary.words, dtype=np.int32)
    state.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
    for token in np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist():
        if token != vocabulary.end and state.consume_token(token):
            state.rollback(1)
            break
    return not state.is_error()
