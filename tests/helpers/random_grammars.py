"""Random grammars of every kind, each with a check of its own that knows nothing of the compiler of grammars."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jsonschema
import numpy as np

from nanoinfer.sampling.grammar.compiler import Grammar
from nanoinfer.sampling_params import SamplingParams
from tests.helpers.grammars import EOS, allowed, matcher_of, story_compiler

WORDS = ("cat", "dog", "the", "sea", "sun", "old", "fox", "day", "said", "run")
MOST_TOKENS = 3_000  # in which the rest of an output must be written: `cat` after `[a-f]*` takes 250 on the average
FINAL = '}])>". é'.encode()  # bytes that often bring an output nearer to its end


@dataclass(frozen=True)
class RandomGrammar:
    """`fields`: as SamplingParams take it. `matches`: whether a text is a complete output, told by Python's `re`, by
    `jsonschema`, or own code."""

    fields: dict[str, Any]
    matches: Callable[[str], bool]

    def text_of(self, token_ids: Sequence[int]) -> str:
        """What these tokens say, an end token aside."""
        tokens = story_compiler().vocabulary.tokens
        return b"".join(tokens[token] for token in token_ids if token != EOS).decode(errors="replace")

    def completed(self, token_ids: Sequence[int]) -> str:
        """A complete output that begins with these tokens. AssertionError if the grammar does not allow them, or does not
        come to an end."""
        grammar = Grammar.of(SamplingParams(**self.fields))
        assert grammar is not None
        matcher = matcher_of(grammar.kind, grammar.text)
        written = list(token_ids)
        for i, token in enumerate(written):
            assert token in allowed(matcher), f"token {i} of {written} is not allowed"
            assert matcher.accept(token)
        rng = np.random.default_rng(len(written))
        while not matcher.is_complete:
            assert len(written) < len(token_ids) + MOST_TOKENS, f"{self.fields}: no end: {self.text_of(written)!r}"
            written.append(_towards_the_end(sorted(allowed(matcher)), rng))
            assert matcher.accept(written[-1])
        return self.text_of(written)


def _towards_the_end(ids: list[int], rng: np.random.Generator) -> int:
    """One of the tokens `ids`, a byte of FINAL, a small letter, or at least one that opens nothing, if it can be."""
    tokens = story_compiler().vocabulary.tokens
    single = [i for i in ids if len(tokens[i]) == 1]
    final = [i for i in single if tokens[i] in FINAL]
    letters = [i for i in single if tokens[i].islower()]
    plain = [i for i in single if tokens[i] not in b"([{<+-,"]
    kinds = [each for each in (final, letters, letters, plain) if each] or [ids]
    choices = kinds[int(rng.integers(len(kinds)))]
    return choices[int(rng.integers(len(choices)))]


def random_grammar(rng: np.random.Generator) -> RandomGrammar:
    """A regular expression, a JSON schema, a choice or a Lark grammar."""
    return (_regex, _json_schema, _json_schema, _choice, _lark)[int(rng.integers(5))](rng)  # most have short outputs


def _one(rng: np.random.Generator, *choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def _word(rng: np.random.Generator) -> str:
    return str(_one(rng, *WORDS))


# --- regular expressions and choices ---------------------------------------------------------------------------------


def _regex(rng: np.random.Generator) -> RandomGrammar:
    parts = [_quantified(rng) for _ in range(int(rng.integers(1, 5)))]
    regex = "".join(parts)
    if rng.random() < 0.3:
        regex = f"{regex}|{_quantified(rng)}{_word(rng)}"
    pattern = re.compile(regex)
    return RandomGrammar({"regex": regex}, lambda text: pattern.fullmatch(text) is not None)


def _quantified(rng: np.random.Generator) -> str:
    some = [_word(rng) for _ in range(int(rng.integers(2, 4)))]
    least = int(rng.integers(0, 3))
    bounded = ("", "", "?", f"{{{least},{least + 3}}}", f"{{{least + 1}}}")
    if rng.random() < 0.15:  # never without a bound: in so large a class, one hardly finds the way out of it by chance
        return "[^a-z\\n]" + str(_one(rng, *bounded))
    atom = _one(rng, "[a-f]", "[0-9]", f"(?: {some[0]})", f"(?:{'|'.join(some)})", "é", r"\.", " ")
    return str(atom + _one(rng, "+", "*", *bounded))


def _choice(rng: np.random.Generator) -> RandomGrammar:
    """Some of which begin with others."""
    texts = [" ".join(_word(rng) for _ in range(int(rng.integers(1, 4)))) for _ in range(int(rng.integers(1, 5)))]
    texts += [f"{texts[0]} {_word(rng)}", f" {texts[-1]}"][: int(rng.integers(0, 3))]
    return RandomGrammar({"choice": texts}, texts.__contains__)


# --- JSON schemas ----------------------------------------------------------------------------------------------------


def _json_schema(rng: np.random.Generator) -> RandomGrammar:
    schema = random_schema(rng, depth=2)
    validator = jsonschema.Draft202012Validator(schema)

    def matches(text: str) -> bool:
        return validator.is_valid(json.loads(text))

    return RandomGrammar({"json_schema": _one(rng, schema, json.dumps(schema))}, matches)


def random_schema(rng: np.random.Generator, depth: int) -> dict[str, Any]:
    if depth and rng.random() < 0.7:
        if rng.random() < 0.6:
            names = sorted({_word(rng) for _ in range(int(rng.integers(1, 4)))})
            required = [name for name in names if rng.random() < 0.7]
            properties = {name: random_schema(rng, depth - 1) for name in names}
            return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        if rng.random() < 0.5:
            return {"anyOf": [random_schema(rng, depth - 1) for _ in range(2)]}
        least = int(rng.integers(0, 3))
        return {"type": "array", "items": random_schema(rng, depth - 1), "minItems": least, "maxItems": least + 2}
    low = int(rng.integers(-50, 50))
    return dict(
        _one(
            rng,
            {"type": "string", "minLength": 1, "maxLength": 6},
            {"type": "string", "pattern": "^[a-f]{1,3}$"},
            {"type": "string", "format": "date"},
            {"type": "integer", "minimum": low, "maximum": low + 120},
            {"type": "integer"},
            {"type": "number"},
            {"type": "boolean"},
            {"type": ["null", "integer"]},
            {"enum": [_word(rng), 7, None, f"{_word(rng)} {_word(rng)}"]},
        )
    )


# --- Lark grammars ---------------------------------------------------------------------------------------------------


def _lark(rng: np.random.Generator) -> RandomGrammar:
    grammar, matches = _one(rng, _sums, _nested, _sentences)(rng)
    return RandomGrammar({"grammar": grammar}, matches)


def _sums(rng: np.random.Generator) -> tuple[str, Callable[[str], bool]]:
    """Sums in brackets. One that is a sum can be counted out, bracket by bracket, until a number is left."""
    grammar = 'start: item (("+" | "-") item)*\nitem: /[1-9][0-9]{0,2}/ | "(" start ")"'

    def matches(text: str) -> bool:
        text, before = re.sub(r"[1-9][0-9]{0,2}(?![0-9])", "n", text), None
        while text != before:
            text, before = re.sub(r"\(n([+-]n)*\)", "n", text), text
        return re.fullmatch("n([+-]n)*", text) is not None

    return grammar, matches


def _nested(rng: np.random.Generator) -> tuple[str, Callable[[str], bool]]:
    inside = _word(rng)

    def matches(text: str) -> bool:
        depth = text.count("<")
        return text == "<" * depth + inside + ">" * depth

    return f'start: "<" start ">" | "{inside}"', matches


def _sentences(rng: np.random.Generator) -> tuple[str, Callable[[str], bool]]:
    words, most = sorted({_word(rng) for _ in range(4)}), int(rng.integers(1, 5))
    grammar = f'start: (" " WORD)+ ("." | "!"){{1,{most}}}\nWORD: {" | ".join(json.dumps(word) for word in words)}'
    pattern = re.compile(rf"( ({'|'.join(words)}))+[.!]{{1,{most}}}")
    return grammar, lambda text: pattern.fullmatch(text) is not None
