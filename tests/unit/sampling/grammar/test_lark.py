"""Lark grammars with JSON schemas inside, GBNF, and the grammar of tool calls: what comes out matches, whatever is
sampled."""

import json
import re
from contextlib import suppress
from typing import Any

import jsonschema
import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.requests.tool_calls.registry import HERMES
from nanoinfer.sampling.grammar.compiler import MAX_LENGTH
from nanoinfer.sampling.grammar.lark import as_lark, split_json
from tests.helpers.grammars import accepts, matcher_of

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


WEATHER = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Oslo", "Rome"]}},
}
TIME = {
    "type": "object",
    "properties": {"zone": {"$ref": "#/$defs/city"}},
    "required": ["zone"],
    "additionalProperties": False,
    "$defs": {"city": {"const": "Paris"}},  # the same reference, another meaning
}
FUNCTIONS = {"weather": WEATHER, "time": TIME}
BEGIN, END = HERMES.tags
OSLO = f'{BEGIN}\n{{"name": "weather", "arguments": {{"city": "Oslo", "days": 3}}}}\n{END}'
PARIS = f'{BEGIN}\n{{"name": "time", "arguments": {{"zone": "Paris"}}}}\n{END}'


def grammar(functions: dict[str, Any], parallel: bool) -> tuple[str, str]:
    return "tool_calls", json.dumps([functions, parallel])


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (OSLO, 1),
        (PARIS, 1),
        (f"{OSLO}\n{PARIS}", 2),
        (f"{PARIS}\n{PARIS}\n{OSLO}", 3),
        ("", 0),
        (OSLO + PARIS, 0),
        (f"{OSLO}\n", 0),
        (f"I say {OSLO}", 0),
        (OSLO.replace("Oslo", "Paris"), 0),
        (PARIS.replace("Paris", "Oslo"), 0),
        (OSLO.replace("weather", "time"), 0),
        (OSLO.replace(', "days": 3', ""), 0),
        (OSLO.replace("3", "3.5"), 0),
        (OSLO.replace(': "O', ':"O'), 0),
    ],
)
def test_what_matches(text: str, calls: int, parallel: bool) -> None:
    assert accepts(matcher_of(*grammar(FUNCTIONS, parallel)), text) == (calls == 1 or (parallel and calls > 1))


def test_a_call_that_must_be_the_only_one_ends_the_output() -> None:
    alone, first = (matcher_of(*grammar({"time": TIME}, parallel)) for parallel in (False, True))
    for matcher in (alone, first):
        assert accepts(matcher, PARIS)
    assert alone.must_stop
    assert not first.must_stop
