"""SamplingParams: how the next token of one request is chosen, and when the request ends."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

from nanoinfer.requests.default_numbers import Default, DefaultFloat, DefaultInt
from nanoinfer.requests.grammar_fields import check_grammars, grammar_texts
from nanoinfer.requests.keywords import with_aliases

if TYPE_CHECKING:
    import torch  # what only hands requests on needs none

# (token ids of prompt and output so far, int64 [n]; scores [V] float32) → scores [V]
LogitsProcessor = Callable[[np.ndarray, "torch.Tensor"], "torch.Tensor"]
INT_FIELDS = ("max_new_tokens", "min_new_tokens", "top_k", "seed", "logprobs", "prompt_top_logprobs", "n")
BOOL_FIELDS = (
    *("ignore_eos", "prompt_logprobs", "skip_special_tokens", "include_stop_str_in_output", "parallel_tool_calls"),
)
REAL_FIELDS = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")


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
    | `regex` | regular expression | the whole output matches it, in the syntax of Rust's crate regex; see below |
    | `json_schema` | dict, text | the output is JSON, without spaces between its parts, that the schema allows |
    | `grammar` | Lark grammar, or GBNF | the output matches the rule `start` (`root` in GBNF) |
    | `choice` | 1 to 10,000 strings | the output is one of them |
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
        for name in ("stop", "stop_token_ids", "logits_processors"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, ())
        self._check_int("min_new_tokens", 0)
        if self.max_new_tokens is not None:
            self._check_int("max_new_tokens", 1)
        if self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens={self.min_new_tokens}: must not exceed max_new_tokens={self.max_new_tokens}"
            )
        self._check_real("temperature", 0.0, 1e30)
        if 0 < self.temperature < 1e-30:
            raise ValueError(f"temperature={self.temperature}: must be 0 (greedy) or at least 1e-30")
        self._check_real("top_p", 0.0, 1.0, open_below=True)
        self._check_int("top_k", -1)
        self._check_real("min_p", 0.0, 1.0)
        self._check_real("frequency_penalty", -2.0, 2.0)
        self._check_real("presence_penalty", -2.0, 2.0)
        self._check_real("repetition_penalty", 1e-9, 1e9)
        for name in BOOL_FIELDS:
            self._check_bool(name)
        for name in ("seed", "logprobs"):
            if getattr(self, name) is not None:
                self._check_int(name, 0)
        if self.seed is not None and self.seed >= 2**64:
            raise ValueError(f"seed={self.seed}: must be below 2**64")
        self._check_int("prompt_top_logprobs", 0)
        if self.prompt_top_logprobs and not self.prompt_logprobs:
            raise ValueError(f"prompt_top_logprobs={self.prompt_top_logprobs}: needs prompt_logprobs=True")
        self._check_int("n", 1)
        if self.n > 1 and self.temperature == 0:
            raise ValueError(f"n={self.n}: must be 1 with temperature=0, because all completions would be the same")
        self._check_collections()
        check_grammars(self)
        self._normalise()

    def _normalise(self) -> None:
        """Convert to plain Python numbers (numpy's overflow or lose precision later on) and copy collections."""
        for name in INT_FIELDS + REAL_FIELDS:
            value = getattr(self, name)
            if value is not None and not isinstance(value, Default):
                object.__setattr__(self, name, int(value) if name in INT_FIELDS else float(value))
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(int(token) for token in self.stop_token_ids))
        object.__setattr__(self, "logits_processors", tuple(self.logits_processors))
        if self.top_k == 0:
            object.__setattr__(self, "top_k", -1)
        if self.choice is not None:
            object.__setattr__(self, "choice", tuple(self.choice))
        if self.json_schema is not None and not isinstance(self.json_schema, str):
            object.__setattr__(self, "json_schema", json.dumps(self.json_schema, ensure_ascii=False))
        if self.tool_calls is not None:
            object.__setattr__(self, "tool_calls", json.loads(json.dumps(dict(self.tool_calls))))
        if self.logit_bias is not None:
            object.__setattr__(self, "logit_bias", {int(k): _to_float(v) for k, v in self.logit_bias.items()})

    @property
    def grammar_texts(self) -> list[tuple[str, str | None]]:
        """The name of each field of GRAMMAR_FIELDS, with its value as text; at most one is not None."""
        return grammar_texts(self)

    @property
    def has_grammar(self) -> bool:
        """True when one of GRAMMAR_FIELDS is given."""
        return any(text is not None for _, text in self.grammar_texts)

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

    def _check_int(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise ValueError(f"{name}={value!r}: must be {'None or ' * (name == 'max_new_tokens')}an integer")
        if value < least:
            raise ValueError(f"{name}={value}: must be at least {least}")

    def _check_real(self, name: str, low: float, high: float, open_below: bool = False) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ValueError(f"{name}={value!r}: must be a number")
        number = _to_float(value)
        if not math.isfinite(number) or number > high or number < low or (open_below and number == low):
            above = f"above {low:g}" if open_below else f"at least {low:g}"
            raise ValueError(f"{name}={value}: must be {above} and at most {high:g}")

    def _check_bool(self, name: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, bool):
            hint = "; use True" if name == "prompt_logprobs" else ""
            raise ValueError(f"{name}={value!r}: must be True or False{hint}")

    def _check_collections(self) -> None:
        stops: Any = (self.stop,) if isinstance(self.stop, str) else self.stop
        if not isinstance(stops, Sequence) or not all(isinstance(text, str) and text for text in stops):
            raise ValueError(f"stop={self.stop!r}: must be a string or a sequence of strings, and none may be empty")
        if not isinstance(self.stop_token_ids, Sequence) or not all(map(_is_token_id, self.stop_token_ids)):
            raise ValueError(
                f"stop_token_ids={self.stop_token_ids!r}: must be a sequence of token ids, each at least 0"
            )
        processors: Any = self.logits_processors
        if not isinstance(processors, Sequence) or not all(map(callable, processors)):
            raise ValueError(f"logits_processors={processors!r}: must be a sequence of functions")
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, Mapping) or not all(map(_is_token_id, self.logit_bias)):
                raise ValueError(f"logit_bias={self.logit_bias!r}: must map token ids, each at least 0, to numbers")
            for token, bias in self.logit_bias.items():
                number = math.nan if isinstance(bias, bool) or not isinstance(bias, Real) else _to_float(bias)
                if not (abs(number) <= 1e20 or number == -math.inf):
                    raise ValueError(f"logit_bias[{token}]={bias!r}: must be a number in -1e20..1e20, or -inf")


def _to_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond every float
        return math.inf if value > 0 else -math.inf


def _is_token_id(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0
