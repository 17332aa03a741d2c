"""SamplingParams: how the next token of one request is chosen, and when the request ends."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from nanoinfer.errors import InvalidRequestError
from nanoinfer.requests.keywords import with_aliases

if TYPE_CHECKING:  # what only hands requests on needs none
    import numpy as np
    import torch

# (token ids of prompt and output so far, int64 [n]; scores [V] float32) → scores [V]
LogitsProcessor = Callable[["np.ndarray", "torch.Tensor"], "torch.Tensor"]
LEAST = {  # of integers
    "min_new_tokens": 0,
    "max_new_tokens": 1,
    "top_k": -1,
    "seed": 0,
    "logprobs": 0,
    "prompt_top_logprobs": 0,
    "n": 1,
}
RANGES = {  # of numbers
    "temperature": (0.0, 1e30),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "repetition_penalty": (1e-9, 1e9),
}
BOOL_FIELDS = (
    *("ignore_eos", "prompt_logprobs", "skip_special_tokens", "include_stop_str_in_output", "parallel_tool_calls"),
)
MAY_BE_NONE = ("max_new_tokens", "seed", "logprobs")
GRAMMAR_FIELDS = ("regex", "json_schema", "grammar", "choice", "tool_calls")  # at most one of them


class Default:
    """Marks a number that nobody gave: a checkpoint's own default takes its place where a request is prepared (see
    `RequestBuilder.check`). Until then it is the number that it reads as, also after a copy or `dataclasses.replace`."""


class DefaultFloat(Default, float):
    """A float that nobody gave."""


class DefaultInt(Default, int):
    """An int that nobody gave."""


@with_aliases
@dataclass(frozen=True)
class SamplingParams:
    """Checked on construction: ValueError naming the field for a value that is out of range, NaN or contradicts another.

    | field | range | meaning |
    |---|---|---|
    | `max_new_tokens` | >= 1, None | the maximum number of tokens to generate; None: the rest of the context |
    | `min_new_tokens` | 0..max_new_tokens | before that, no stop token is sampled and stop strings don't end the request |
    | `temperature` | 0, 1e-30..1e30 | divides the logits; 0 is greedy: always the likeliest token |
    | `top_p` | (0, 1] | sample from the smallest set of likeliest tokens with at least this total probability |
    | `top_k` | -1 or 0 (off), >= 1 | sample from the k likeliest tokens |
    | `min_p` | [0, 1] | drop tokens less likely than min_p times the likeliest |
    | `frequency_penalty` | [-2, 2] | subtracted from a token's logit once per occurrence in the output |
    | `presence_penalty` | [-2, 2] | subtracted from the logits of tokens that occur in the output |
    | `repetition_penalty` | 1e-9..1e9 | divides positive, multiplies negative logits of tokens in prompt or output |
    | `stop` | strings | end when the text contains one of these, or with a special token of this text; it ends before it |
    | `stop_token_ids` | token ids | end on one of these, in addition to the model's end tokens |
    | `ignore_eos` | bool | the model's end tokens do not end the request |
    | `seed` | >= 0, None | the same seed gives the same tokens, whatever else is in the batch; None draws a seed |
    | `logit_bias` | {token id: -1e20..1e20} | added to the logits; -inf forbids a token |
    | `logprobs` | >= 0, None | per output token: its log-probability and those of the k likeliest |
    | `prompt_logprobs` | bool | log-probability of every prompt token; computes the whole prompt, cached or not |
    | `prompt_top_logprobs` | >= 0 | with `prompt_logprobs`: also those of the k likeliest tokens at each position |
    | `logits_processors` | functions | each takes (token ids so far, logits [V]) and returns the logits to choose from |
    | `n` | >= 1 | number of completions of the prompt; each has its own stream of random numbers |
    | `skip_special_tokens` | bool | False: the text has special tokens too, except the one that ended it |
    | `include_stop_str_in_output` | bool | the text includes what ended it: a stop string, or a special token if shown |
    | `regex` | regular expression | the whole output matches it, in the syntax of Rust's crate regex |
    | `json_schema` | dict, text | the output is JSON, without spaces between its parts, that the schema allows |
    | `grammar` | Lark grammar, or GBNF | the output matches the rule `start` (`root` in GBNF) |
    | `choice` | strings | the output is one of them |
    | `tool_calls` | {name: JSON schema} | the output is calls of these functions, as Qwen's models write them |
    | `parallel_tool_calls` | bool | False: the first call is the end, whether `tool_calls` demands one or it just comes |

    Numbers that multiply or divide are bounded so that float32 arithmetic stays finite. They apply in the order of Hugging
    Face's `generate`, as far as it has them: logit_bias, repetition_penalty, frequency and presence penalty,
    min_new_tokens, logits_processors, temperature, top_k, top_p, min_p.

    A `regex` is nearly as in Python. It has no look-around (`(?=...)`, `\\b`), no backreferences, no atomic groups and
    no `{,3}`. `^` and `$` may only stand at its two ends, and change nothing, as the whole output matches anyway.
    `\\d`, `\\w` and `\\s` are those of Unicode (`(?-u)\\d` of ASCII), and `.` is no newline (`(?s:.)` is).

    Where `temperature`, `top_p`, `top_k`, `min_p` or `repetition_penalty` is not given, the checkpoint's default counts, if
    its generation_config.json has one (see `generation_config` of LLM).

    `stop`, `stop_token_ids` and `logits_processors` may be None, which means none. Names from vLLM and SGLang with the same
    meaning also work (`max_tokens`, `min_tokens`, ...; see keywords.py). UnknownArgumentError for any other name, and for a
    field that is given under two names.
    """

    max_new_tokens: int = 128  # once a request is prepared, never None
    min_new_tokens: int = 0
    temperature: float = DefaultFloat(1.0)
    top_p: float = DefaultFloat(1.0)
    top_k: int = DefaultInt(-1)
    min_p: float = DefaultFloat(0.0)
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = DefaultFloat(1.0)
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logit_bias: Mapping[int, float] | None = None
    logprobs: int | None = None
    prompt_logprobs: bool = False
    prompt_top_logprobs: int = 0
    n: int = 1
    logits_processors: Sequence[LogitsProcessor] = ()
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    regex: str | None = None
    json_schema: Mapping[str, Any] | str | None = None
    grammar: str | None = None
    choice: Sequence[str] | None = None
    tool_calls: Mapping[str, Any] | None = None
    parallel_tool_calls: bool = True

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            self._check_int(name, least)
        for name, (low, high) in RANGES.items():
            self._check_real(name, low, high)
        for name in BOOL_FIELDS:
            if not isinstance(value := getattr(self, name), bool):
                raise InvalidRequestError(f"{name}={value!r}: must be True or False", name)
        self._check_together()
        self._check_collections()
        self._check_grammars()

    def _check_int(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if value is None and name in MAY_BE_NONE:
            return
        if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
            raise InvalidRequestError(f"{name}={value!r}: must be an integer of at least {least}", name)
        if not isinstance(value, Default):
            self._set(name, int(value))

    def _check_real(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else _to_float(value)
        if not low <= number <= high:
            raise InvalidRequestError(f"{name}={value!r}: must be a number in {low:g}..{high:g}", name)
        if not isinstance(value, Default):
            self._set(name, number)

    def _check_together(self) -> None:
        """ValueError for numbers that are out of range, or contradict each other."""
        if self.top_p == 0:
            raise InvalidRequestError(f"top_p={self.top_p}: must be above 0", "top_p")
        if 0 < self.temperature < 1e-30:
            raise InvalidRequestError(
                f"temperature={self.temperature}: must be 0 (greedy) or at least 1e-30", "temperature"
            )
        if self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            raise InvalidRequestError(
                f"min_new_tokens={self.min_new_tokens}: must not exceed max_new_tokens={self.max_new_tokens}",
                "min_new_tokens",
            )
        if self.seed is not None and self.seed >= 2**64:
            raise InvalidRequestError(f"seed={self.seed}: must be below 2**64", "seed")
        if self.prompt_top_logprobs and not self.prompt_logprobs:
            raise InvalidRequestError(
                f"prompt_top_logprobs={self.prompt_top_logprobs}: needs prompt_logprobs=True", "prompt_top_logprobs"
            )
        if self.n > 1 and self.temperature == 0:
            raise InvalidRequestError(
                f"n={self.n}: must be 1 with temperature=0, because all completions would be the same", "n"
            )
        if self.top_k == 0:
            self._set("top_k", -1)

    def _check_collections(self) -> None:
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        for name, given, fits in (
            ("stop", stop, lambda text: isinstance(text, str) and text),
            ("stop_token_ids", self.stop_token_ids, _is_token_id),
            ("logits_processors", self.logits_processors, callable),
        ):
            if given is not None and not (isinstance(given, Sequence) and all(map(fits, given))):
                what = {"stop": "texts, none empty", "stop_token_ids": "token ids"}.get(name, "functions")
                raise InvalidRequestError(f"{name}={given!r}: must be a sequence of {what}", name)
            self._set(name, tuple(given or ()))
        self._set("stop_token_ids", tuple(map(int, self.stop_token_ids)))
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, Mapping) or not all(map(_is_token_id, self.logit_bias)):
                raise InvalidRequestError(
                    f"logit_bias={self.logit_bias!r}: must map token ids, each at least 0, to numbers", "logit_bias"
                )
            for token, bias in self.logit_bias.items():
                number = math.nan if isinstance(bias, bool) or not isinstance(bias, Real) else _to_float(bias)
                if not (abs(number) <= 1e20 or number == -math.inf):
                    raise InvalidRequestError(
                        f"logit_bias[{token}]={bias!r}: must be a number in -1e20..1e20, or -inf", "logit_bias"
                    )
            self._set("logit_bias", {int(token): _to_float(bias) for token, bias in self.logit_bias.items()})

    def _check_grammars(self) -> None:
        """ValueError when the grammar has a wrong type, or there are several. Whether it can be compiled is found out when
        the request arrives."""
        given = [name for name in GRAMMAR_FIELDS if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidRequestError(
                f"{' and '.join(given)}: at most one of {', '.join(GRAMMAR_FIELDS)} can be given", given[-1]
            )
        for name in ("regex", "grammar"):
            if not isinstance(value := getattr(self, name), str | None):
                raise InvalidRequestError(f"{name}={value!r}: must be a string", name)
        if (choice := self.choice) is not None:
            is_list = isinstance(choice, Sequence) and not isinstance(choice, str)
            if not is_list or not choice or not _are_texts(choice):
                raise InvalidRequestError(
                    f"choice={choice!r}: must be a list of at least one string, and none may be empty", "choice"
                )
            self._set("choice", tuple(choice))
        if (schema := self.json_schema) is not None and not isinstance(schema, str):
            if not isinstance(schema, Mapping):
                raise InvalidRequestError(f"json_schema={schema!r}: must be a dict or its text", "json_schema")
            self._set("json_schema", _as_json("json_schema", schema))
        if (calls := self.tool_calls) is not None:
            if not isinstance(calls, Mapping) or not calls or not _are_texts(calls):
                raise InvalidRequestError(
                    f"tool_calls={calls!r}: must map the name of each function to a JSON schema, at least one",
                    "tool_calls",
                )
            self._set("tool_calls", json.loads(_as_json("tool_calls", dict(calls))))
        elif self.min_new_tokens and not self.parallel_tool_calls:
            raise InvalidRequestError(
                f"min_new_tokens={self.min_new_tokens}: must be 0 with parallel_tool_calls=False", "min_new_tokens"
            )

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def grammar_texts(self) -> list[tuple[str, str | None]]:
        """The name of each field of GRAMMAR_FIELDS, with its value as text; at most one is not None."""
        choice = None if self.choice is None else json.dumps(self.choice)
        schema = self.json_schema if isinstance(self.json_schema, str | None) else json.dumps(self.json_schema)
        calls = None if self.tool_calls is None else json.dumps([self.tool_calls, self.parallel_tool_calls])
        return list(zip(GRAMMAR_FIELDS, (self.regex, schema, self.grammar, choice, calls), strict=True))

    @property
    def has_grammar(self) -> bool:
        """True when one of GRAMMAR_FIELDS is given."""
        return any(getattr(self, name) is not None for name in GRAMMAR_FIELDS)

    @property
    def greedy(self) -> bool:
        """True when the likeliest token is always taken."""
        return self.temperature == 0

    @cached_property
    def draws_from_all(self) -> bool:
        """True when no token is left out: neither top-k nor top-p nor min-p is set."""
        return self.top_k <= 0 and self.top_p == 1.0 and self.min_p == 0.0

    @cached_property
    def adjusts_logits(self) -> bool:
        """True when logits processors change the logits of every token (`min_new_tokens` concerns the first ones)."""
        penalised = self.repetition_penalty != 1.0 or self.frequency_penalty or self.presence_penalty
        return bool(self.logit_bias or penalised or self.logits_processors)

    @cached_property
    def wants_logits(self) -> bool:
        """True when it takes more than the likeliest token."""
        return not self.greedy or self.logprobs is not None


def _to_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond every float
        return math.inf if value > 0 else -math.inf


def _is_token_id(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) and value for value in values)


def _as_json(name: str, value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{name}: cannot be written as JSON: {error}", name) from error
