"""Turns the grammars of requests into matchers, with llguidance, in bounded time and memory."""

import atexit
import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np

from nanoinfer.errors import InvalidRequestError
from nanoinfer.requests.tool_calls.gptoss import Channels
from nanoinfer.requests.tool_calls.registry import HERMES, format_of, reasoning_of
from nanoinfer.sampling.grammar.json_schemas import prepared_schema
from nanoinfer.sampling.grammar.lark import calls_grammar, either, lark_grammar
from nanoinfer.sampling.grammar.matcher import Matcher, reason
from nanoinfer.sampling.grammar.trial import STEPS, Trials, in_thread
from nanoinfer.sampling.grammar.vocabulary import Vocabulary
from nanoinfer.sampling_params import SamplingParams

MAX_LENGTH = 200_000  # characters of a grammar of any kind
MAX_CACHED = 64  # compiled grammars
MAX_SECONDS = 30.0  # that a request waits for its grammar
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


@dataclass(frozen=True)
class Grammar:
    """`kind`: the field of SamplingParams that it comes from (GRAMMAR_FIELDS). `text`: a regular expression, a JSON schema,
    a Lark grammar, the choices as a JSON list, or [tool_calls, parallel_tool_calls] as JSON. `calls`: such a list, beside
    another kind: either matches. `reasoning`: as in SamplingParams."""

    kind: str
    text: str
    calls: str | None = None
    reasoning: str | None = None

    @classmethod
    def of(cls, params: SamplingParams) -> "Grammar | None":
        """The grammar that `params` ask for; None if they ask for none."""
        if (kind := params.grammar_field) is None:
            return None
        given, calls = getattr(params, kind), None
        if params.tool_calls is not None:
            calls = json.dumps([params.tool_calls, params.parallel_tool_calls])
        if kind == "tool_calls":
            return cls(kind, str(calls), None, params.reasoning)
        return cls(kind, given if isinstance(given, str) else json.dumps(given), calls, params.reasoning)


class Refusal(ValueError):
    """Why a grammar cannot be served, in words that follow its name."""


class Grammars:
    """The grammars of one model. May be used by any thread; the vocabulary is read when the first grammar comes."""

    def __init__(self, tokenizer: Any, vocab_size: int, end_ids: Iterable[int] = ()):
        self._tokenizer, self._vocab_size, self._end_ids = tokenizer, vocab_size, sorted(end_ids)
        self._compiler: Compiler | None = None
        self._lock = threading.Lock()

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
        end = time.monotonic() + limit
        try:
            with self._lock:
                self._compiler = self._compiler or self._new_compiler()
            return self._compiler.compile(grammar, end - time.monotonic()).matcher
        except Refusal as error:
            raise InvalidRequestError(f"{name}: {grammar.kind}: {error}", grammar.kind) from error
        except TimeoutError as error:
            given = "" if timeout_s is None or timeout_s > MAX_SECONDS else "timeout_s="
            why = f"compiling it takes longer than {given}{limit:g} seconds"
            raise InvalidRequestError(f"{name}: {grammar.kind}: {why}", grammar.kind) from error

    def _new_compiler(self) -> "Compiler":
        if self._tokenizer is None:
            raise Refusal("needs a tokenizer, but this model has none")
        try:
            return Compiler(Vocabulary(self._tokenizer, self._vocab_size, self._end_ids))
        except ValueError as error:
            raise Refusal(f"this model's tokenizer cannot serve grammars: {error}") from error


@dataclass
class Compiled:
    """A grammar, and what it compiles to: `start` is a matcher of llguidance at its start; None until it is compiled."""

    grammar: Grammar
    vocabulary: Vocabulary
    start: Any = None
    takes_drafts: bool = True
    lock: Any = field(default_factory=threading.Lock)  # llguidance's objects must not be used by two threads at once

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        """A matcher at the start, for a request that ends by one of `stop_token_ids`.

        Those of them that are special, as the model's end tokens are, are allowed when the output is complete. One that
        stands for text is allowed where its text is.
        """
        ends = stop_token_ids & self.vocabulary.special
        is_json = self.grammar.kind in ("json_schema", "tool_calls")
        thought = None
        if self.grammar.reasoning and (reasoning := reasoning_of(self.vocabulary.tokenizer)):
            begin = "" if self.grammar.reasoning == "open" else reasoning.begin
            thought = begin.encode(), reasoning.end.encode()
        with self.lock:
            state = self.start.deep_copy()
        return Matcher(state, self.vocabulary, ends, is_json, self.takes_drafts, thought)


class Compiler:
    """Compiles grammars, and keeps the MAX_CACHED that were used last. May be used by any thread. `trials`: where each is
    tried before."""

    def __init__(self, vocabulary: Vocabulary, trials: Trials | None = None):
        self.vocabulary, self._trials = vocabulary, trials or shared_trials(os.getpid())
        self._cache: OrderedDict[Grammar, Compiled] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, grammar: Grammar, seconds: float = MAX_SECONDS) -> Compiled:
        """The compiled grammar. Threads that want the same one wait for the first. Refusal with the reason when it cannot
        be compiled, TimeoutError if it is not known in `seconds` whether it can."""
        end = time.monotonic() + seconds
        with self._lock:
            compiled = self._cache.setdefault(grammar, Compiled(grammar, self.vocabulary))
            self._cache.move_to_end(grammar)
            if len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
        if not compiled.lock.acquire(timeout=max(0.0, seconds)):
            raise TimeoutError
        try:
            if compiled.start is None:
                self._compile(compiled, end)
        finally:
            compiled.lock.release()
        return compiled

    def _compile(self, compiled: Compiled, end: float) -> None:
        try:
            text = _with_reasoning(compiled.grammar, self.vocabulary)
        except (ValueError, RecursionError) as error:
            raise Refusal("is too deep" if isinstance(error, RecursionError) else str(error)) from error
        if failure := self._trials.failure(text, LIMITS, max(0.0, end - time.monotonic())):
            raise Refusal(failure)
        result: list[tuple[Any, bool] | Exception] = []
        in_thread(partial(_start, text, self.vocabulary, result), seconds=max(0.0, end - time.monotonic()))
        if not result:
            raise TimeoutError
        if isinstance(result[0], Exception):
            raise result[0]
        compiled.start, compiled.takes_drafts = result[0]


@cache
def shared_trials(process: int) -> Trials:
    """All compilers of a process share these helpers, which keep nothing of a grammar."""
    trials = Trials()
    atexit.register(trials.close)
    return trials


def _with_reasoning(grammar: Grammar, vocabulary: Vocabulary) -> str:
    """What llguidance compiles for `grammar`, with calls instead of it, and a thought before, if there may be any."""
    text, reasoning = _text_for_compiler(grammar, vocabulary), reasoning_of(vocabulary.tokenizer)
    if grammar.calls is None and (grammar.reasoning is None or reasoning is None):
        return text
    calls = None if grammar.calls is None else _text_for_compiler(Grammar("tool_calls", grammar.calls), vocabulary)
    thought, before, rules = "", "", list[str]()
    if reasoning is not None and (grammar.reasoning or isinstance(reasoning, Channels)):
        thought, before, rules = reasoning.grammar(grammar.reasoning == "open", vocabulary.lark_tag)
    before = "" if grammar.kind == "tool_calls" else before
    return either(thought, rules, before, text, calls)


def _text_for_compiler(grammar: Grammar, vocabulary: Vocabulary) -> str:
    """What llguidance compiles for `grammar`. ValueError when it is too large, or cannot be compiled exactly."""
    from llguidance import LLMatcher

    if len(grammar.text) > MAX_LENGTH:
        raise ValueError(f"has {len(grammar.text)} characters: must not exceed {MAX_LENGTH}")
    if grammar.kind == "json_schema":
        return LLMatcher.grammar_from_json_schema(json.dumps(prepared_schema(grammar.text)), overrides=COMPACT_JSON)
    if grammar.kind == "tool_calls":
        call_format = format_of(vocabulary.tokenizer) or HERMES
        return calls_grammar(grammar.text, call_format, vocabulary.lark_tag, COMPACT_JSON)
    if grammar.kind == "grammar":
        return lark_grammar(grammar.text, COMPACT_JSON)
    if grammar.kind == "choice":
        choices = " | ".join(map(json.dumps, json.loads(grammar.text)))
        return LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {choices}")  # a terminal is quicker than rules
    return LLMatcher.grammar_from_regex(grammar.text)


def _start(text: str, vocabulary: Vocabulary, result: list[Any]) -> None:
    """Put the matcher of llguidance for `text` and whether it can take tokens back into `result`, or a Refusal."""
    from llguidance import LLMatcher, LLParserLimits

    try:
        start = LLMatcher(vocabulary.compiled, text, log_level=0, limits=LLParserLimits(**LIMITS))
        if start.is_error():
            raise Refusal(f"cannot be compiled: {reason(start.get_error())}")
        if failure := _failure(Matcher(start.deep_copy(), vocabulary, ())):
            raise Refusal(f"it is too large, or no output of this model matches it: {reason(failure)}")
        result.append((start, _takes_drafts(start.deep_copy(), vocabulary)))
    except Refusal as refusal:
        result.append(refusal)
    except BaseException as error:  # code written in Rust raises a PanicException, which is no Exception, when it fails
        result.append(Refusal(f"the compiler fails on it: {reason(str(error))}"))


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


def _takes_drafts(state: Any, vocabulary: Vocabulary) -> bool:
    """Whether llguidance can take tokens back. It cannot where a Lark grammar has max_tokens=... or stop=..."""
    row = np.zeros(vocabulary.words, dtype=np.int32)
    state.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
    for token in np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist():
        if token != vocabulary.end and state.consume_token(token):
            state.rollback(1)
            break
    return not state.is_error()
