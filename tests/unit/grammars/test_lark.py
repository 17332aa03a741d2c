"""Lark grammars with JSON schemas inside, and GBNF: what comes out matches, whatever is sampled."""

import json
import re
from contextlib import suppress
from typing import Any

import jsonschema
import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.grammars.grammar import MAX_LENGTH
from nanoinfer.grammars.lark import as_lark, split_json

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 5, "maximum": 70}, "b": {"$ref": "#/$defs/kind"}},
    "required": ["a", "b"],
    "additionalProperties": False,
    "$defs": {"kind": {"enum": ["x", 'y " %json {}', None]}},
}
TEXT = json.dumps(SCHEMA, indent=2)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("story", max_total_tokens=2048)


def samples(llm: LLM, grammar: str) -> list[str]:
    params = SamplingParams(grammar=grammar, max_new_tokens=100, temperature=2.0, n=8, seed=3)
    outputs = llm.generate("Once", params)[0].outputs
    assert {output.finish_reason for output in outputs} == {"stop"}
    return [output.text for output in outputs]


@pytest.mark.parametrize(
    ("options", "separators"),
    [({}, (",", ":")), ({"item_separator": ", ", "key_separator": ": ", "lenient": True}, (", ", ": "))],
)
def test_what_is_in_json_follows_its_schema(llm: LLM, options: dict[str, Any], separators: tuple[str, str]) -> None:
    schema = json.dumps({**SCHEMA, "x-guidance": options}, indent=2) if options else TEXT
    texts = samples(llm, f'start: "<" j ">" %json {{"const": 1}} // %no\nj[capture]: %json {schema}\n')
    assert len(set(texts)) > 2
    for text in texts:
        document = json.loads(text.removeprefix("<").removesuffix(">1"))
        jsonschema.validate(document, SCHEMA)
        assert text == f"<{json.dumps(document, separators=separators)}>1"


@pytest.mark.parametrize(
    ("gbnf", "regex"),
    [
        ('root ::= item ("," ws item)*   # a list\nitem ::= [a-c]{1,2}\nws ::= " "?\n', r"[a-c]{1,2}(, ?[a-c]{1,2})*"),
        ('root ::= "\\u0041" | "\\U0001F600" [\\u0042-\\u0043] | "\\\\u0041"', r"A|\U0001F600[BC]|\\u0041"),
        ('root ::= my-Rule\nmy-Rule ::= ("yes" | "no") "!"?', r"(yes|no)!?"),
        ('root ::= [^\\x00-\\x5f\\x7b-\\U0010ffff]{3} "." | ', r"([`-z]{3}\.)?"),
    ],
)
def test_what_comes_out_matches_the_gbnf(llm: LLM, gbnf: str, regex: str) -> None:
    for text in samples(llm, gbnf):
        assert re.fullmatch(regex, text), text


def test_lark_stays_as_it_is() -> None:
    for text in ('start: "root ::= x"\n', "start: /a ::= b/", "%llguidance {}\nstart: A\nA: /x/\n", ""):
        assert as_lark(text) == text


@pytest.mark.parametrize("lark", ['start: "%json {}"', "start: /%json {}/", 'start: "a" # %json {}', "// %json {}\n"])
def test_json_in_strings_regular_expressions_and_comments_stays(lark: str) -> None:
    assert split_json(lark) == (lark, [])


@pytest.mark.parametrize(
    "piece", ['"\\"', "/\\/", '""', "%json{}", "[\\]", "# ", "a ::= ", '"a"|', "a\n", "[", "(", "\\"]
)
def test_long_texts_take_no_long_time(piece: str) -> None:
    """Where the time grew with the square of the length, this would take minutes."""
    for text in (piece * (MAX_LENGTH // len(piece)), "root ::= " + piece * (MAX_LENGTH // len(piece))):
        for function in (as_lark, split_json):
            with suppress(ValueError):
                function(text)
