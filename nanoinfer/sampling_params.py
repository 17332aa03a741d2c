"""SamplingParams: how the next token of one request is chosen, and when the request ends."""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from nanoinfer.errors import InvalidRequestError
from nanoinfer.keywords import with_aliases

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


def _are_texts(values: Collection[Any]) -> bool:
    return len(values) > 0 and all(isinstance(value, str) and value for value in values)


GRAMMARS: dict[str, tuple[str, Callable[[Any], bool]]] = {  # what each must be, and whether it is
    "regex": ("a string", lambda value: isinstance(value, str)),
    "json_schema": ("a dict or its text", lambda value: isinstance(value, str | Mapping)),
    "grammar": ("a string", lambda value: isinstance(value, str)),
    "choice": (
        "a list of at least one string, and none may be empty",
        lambda value: isinstance(value, Sequence) and not isinstance(value, str) and _are_texts(value),
    ),
    "tool_calls": (
        "a mapping of the name of each function, at least one, to a JSON schema",
        lambda value: isinstance(value, Mapping) and _are_texts(value),
    ),
}
GRAMMAR_FIELDS = tuple(GRAMMARS)


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
    | `tool_calls` | {name: JSON schema} | the output is calls of these functions; beside another grammar: calls, or that |
    | `reasoning` | None, "may", "open" | the grammar holds behind a thought: one may come, or goes on already |
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
    reasoning: str | None = None

    def __post_init__(self) -> None:
        self._check_single_values()
        self._check_together()
        self._check_collections()
        self._check_grammars()

    def _check_single_values(self) -> None:
        """Numbers within their range, which become plain ones, and truth values."""
        for name, least in LEAST.items():
            value: Any = getattr(self, name)
            if value is None and name in MAY_BE_NONE:
                continue
            if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
                raise InvalidRequestError(f"{name}={value!r}: must be an integer of at least {least}", name)
            if not isinstance(value, Default):
                self._set(name, int(value))
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if not low <= (number := _real(value)) <= high:
                raise InvalidRequestError(f"{name}={value!r}: must be a number in {low:g}..{high:g}", name)
            if not isinstance(value, Default):
                self._set(name, number)
        for name in BOOL_FIELDS:
            if not isinstance(value := getattr(self, name), bool):
                raise InvalidRequestError(f"{name}={value!r}: must be True or False", name)

    def _check_together(self) -> None:
        """Numbers that are refused within their range, or that contradict each other."""
        most = self.max_new_tokens
        ends_with_a_call = not self.parallel_tool_calls and self.tool_calls is None
        for name, is_wrong, rule in (
            ("top_p", self.top_p == 0, "must be above 0"),
            ("temperature", 0 < self.temperature < 1e-30, "must be 0 (greedy) or at least 1e-30"),
            ("min_new_tokens", self.min_new_tokens > (most or math.inf), f"must not exceed max_new_tokens={most}"),
            ("min_new_tokens", self.min_new_tokens and ends_with_a_call, "must be 0 with parallel_tool_calls=False"),
            ("seed", (self.seed or 0) >= 2**64, "must be below 2**64"),
            (
                "prompt_top_logprobs",
                self.prompt_top_logprobs and not self.prompt_logprobs,
                "needs prompt_logprobs=True",
            ),
            (
                "n",
                self.n > 1 and self.temperature == 0,
                "must be 1 with temperature=0: all completions would be the same",
            ),
        ):
            if is_wrong:
                raise InvalidRequestError(f"{name}={getattr(self, name)}: {rule}", name)
        if self.top_k == 0:
            self._set("top_k", -1)

    def _check_collections(self) -> None:
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        for name, given, fits, what in (
            ("stop", stop, lambda text: isinstance(text, str) and text, "texts, none empty"),
            ("stop_token_ids", self.stop_token_ids, _is_token_id, "token ids"),
            ("logits_processors", self.logits_processors, callable, "functions"),
        ):
            if given is not None and not (isinstance(given, Sequence) and all(map(fits, given))):
                raise InvalidRequestError(f"{name}={given!r}: must be a sequence of {what}", name)
            self._set(name, tuple(given or ()))
        self._set("stop_token_ids", tuple(map(int, self.stop_token_ids)))
        if (biases := self.logit_bias) is not None:
            if not isinstance(biases, Mapping) or not all(map(_is_token_id, biases)):
                raise InvalidRequestError(f"logit_bias={biases!r}: must map token ids to numbers", "logit_bias")
            for token, bias in biases.items():
                if not (abs(_real(bias)) <= 1e20 or _real(bias) == -math.inf):
                    raise InvalidRequestError(
                        f"logit_bias[{token}]={bias!r}: must be a number in -1e20..1e20, or -inf", "logit_bias"
                    )
            self._set("logit_bias", {int(token): float(bias) for token, bias in biases.items()})

    def _check_grammars(self) -> None:
        """Whether the grammar has the right type, and is the only one beside calls. Whether it can be compiled is found out
        when the request arrives."""
        given = [name for name in GRAMMAR_FIELDS if getattr(self, name) is not None]
        if len([name for name in given if name != "tool_calls"]) > 1:
            raise InvalidRequestError(
                f"{' and '.join(given)}: at most one of {', '.join(GRAMMAR_FIELDS[:-1])} can be given", given[-1]
            )
        if self.reasoning not in (None, "may", "open"):
            raise InvalidRequestError(f"reasoning={self.reasoning!r}: must be None, 'may' or 'open'", "reasoning")
        for name in given:
            value: Any = getattr(self, name)
            must_be, fits = GRAMMARS[name]
            if not fits(value):
                raise InvalidRequestError(f"{name}={value!r}: must be {must_be}", name)
        if self.choice is not None:
            self._set("choice", tuple(self.choice))
        if isinstance(self.json_schema, Mapping):
            self._set("json_schema", _as_json("json_schema", self.json_schema))
        if self.tool_calls is not None:
            self._set("tool_calls", json.loads(_as_json("tool_calls", dict(self.tool_calls))))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @cached_property
    def grammar_field(self) -> str | None:
        """The one of GRAMMAR_FIELDS that is given; None without a grammar."""
        return next((name for name in GRAMMAR_FIELDS if getattr(self, name) is not None), None)

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


def _is_token_id(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0


def _real(value: object) -> float:
    """A number as a float; NaN for anything else, and for an integer beyond every float."""
    try:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.nan


def _as_json(name: str, value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{name}: cannot be written as JSON: {error}", name) from error
