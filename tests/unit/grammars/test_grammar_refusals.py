"""Grammars that cannot be followed or would take the compiler too long: refused on arrival, by name."""

import json
from typing import Any

import pytest

from nanoinfer import SamplingParams
from nanoinfer.errors import InvalidRequestError
from tests.helpers.engines import LetterTokenizer, greedy, make_engine
from tests.helpers.grammar_engines import engine_with, one


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"regex": "("}, r"^story: regex: "),
        ({"regex": "a" * 200_001}, r"^story: regex: .*200001.*200000"),
        ({"grammar": "start: other"}, r"^story: grammar: .*other"),
        ({"grammar": '{"type": "null"}'}, r"^story: grammar: "),
        ({"grammar": ""}, r"^story: grammar: "),
        ({"grammar": 'start: %lark { start: "a" }'}, r"^story: grammar: %lark"),
        ({"grammar": 'start: "%json {}"'}, r"^story: grammar: %json"),
        ({"grammar": "start: %json nope"}, r"^story: grammar: %json"),
        ({"grammar": 'start: %json {"minProperties": 3}'}, r"^story: grammar: %json: minProperties=3"),
        ({"grammar": 'start: %json {"x-guidance": {"key_separator": 1}}'}, "x-guidance.key_separator=1"),
        ({"grammar": "root ::= other"}, r"^story: grammar: .*other"),
        ({"grammar": 'root ::= "'}, r"^story: grammar: "),
        ({"grammar": "root ::= [^a&&b]"}, r"^story: grammar: .*&&"),
        ({"json_schema": "{"}, r"^story: json_schema: "),
        ({"json_schema": "5"}, r"^story: json_schema: .*5"),
        ({"json_schema": {"not": {}}}, r"^story: json_schema: .*\"not\""),
        ({"json_schema": {"multipleOf": 12345678}}, "^story: json_schema: .*SIGXCPU"),  # minutes, and gigabytes
        ({"json_schema": '{"items":' * 10_000 + "{}" + "}" * 10_000}, "^story: json_schema: .*too deep"),
        ({"tool_calls": {"say": {"not": {}}}}, r"^story: tool_calls: .*\"not\""),
        ({"tool_calls": {"say": 5}}, r"^story: tool_calls: .*'say'.* 5"),
        ({"tool_calls": {"ok": {}, "say": {"x-guidance": {}}}}, r"^story: tool_calls: .*'say': x-guidance"),
        ({"json_schema": "false"}, r"^story: json_schema: "),
    ],
)
def test_what_cannot_be_compiled_is_refused_on_arrival(fields: dict[str, Any], message: str) -> None:
    engine = engine_with()
    with pytest.raises(InvalidRequestError, match=message):
        engine.add_request("a", greedy(**fields), name="story")
    assert not engine.has_unfinished()
    assert one(engine, regex="bcd").text == "bcd"


def test_a_grammar_needs_a_tokenizer_that_can_be_read() -> None:
    engine = make_engine()
    engine.builder.tokenizer = engine.grammars._tokenizer = None
    with pytest.raises(InvalidRequestError, match=r"^prompt: regex: .*tokenizer"):
        engine.add_request([5], greedy(regex="a"))

    class Mumbles(LetterTokenizer):
        def decode(self, token_ids: Any) -> str:
            return "mm" * len(token_ids) + "h" * (len(token_ids) > 5)

    with pytest.raises(InvalidRequestError, match=r"^prompt: choice: .*tokenizer"):
        make_engine(tokenizer=Mumbles()).add_request([5], greedy(choice=["a"]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"regex": "a", "choice": ["b"]}, "regex and choice"),
        ({"regex": 5}, "regex=5"),
        ({"grammar": ["a"]}, "grammar="),
        ({"choice": []}, "choice="),
        ({"choice": "yes"}, "choice='yes'"),
        ({"choice": ["a", ""]}, "choice="),
        ({"choice": [1]}, "choice="),
        ({"json_schema": 5}, "json_schema=5"),
        ({"json_schema": {"a": object()}}, "json_schema"),
        ({"json_schema": {"minimum": float("nan")}}, "json_schema"),
        ({"tool_calls": []}, "tool_calls="),
        ({"tool_calls": {}}, "tool_calls="),
        ({"tool_calls": {"": {}}}, "tool_calls="),
        ({"tool_calls": {"say": object()}}, "tool_calls"),
        ({"tool_calls": {"say": {}}, "regex": "a"}, "regex and tool_calls"),
        ({"parallel_tool_calls": False, "min_new_tokens": 2}, "min_new_tokens=2.*parallel_tool_calls"),
        ({"tool_calls": {"say": {}}, "parallel_tool_calls": 0}, "parallel_tool_calls=0"),
    ],
)
def test_parameters_of_a_wrong_kind_are_refused_when_they_are_made(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(**fields)


def test_an_unknown_keyword_alone_is_ignored_as_the_standard_says() -> None:
    assert one(engine_with(), json_schema={"const": "abcdef", "maxLenght": 2}).text == '"abcdef"'


def test_a_schema_may_be_a_dict_or_its_text_and_later_changes_do_not_matter() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"b": {}, "a": {}}}
    params = SamplingParams(json_schema=schema, choice=None)
    assert params == SamplingParams(json_schema=json.dumps(schema))
    assert hash(params) == hash(SamplingParams(json_schema=json.dumps(schema)))
    schema["properties"].clear()
    assert params == SamplingParams(json_schema={"type": "object", "properties": {"b": {}, "a": {}}})
    assert SamplingParams(choice=["a", "b"]).choice == ("a", "b")


@pytest.mark.parametrize(
    "schema",
    [
        {
            "type": "object",
            "properties": {f"k{i}": {"type": "integer"} for i in range(2_000)},
            "required": [f"k{i}" for i in range(2_000)],
        },
        {"enum": [f"value {i}" for i in range(1_000)]},
        {
            "$defs": {"k": {"type": "object", "properties": {"next": {"$ref": "#/$defs/k"}}}},
            "$ref": "#/$defs/k",
        },
        {
            "$defs": {f"k{i}": {"properties": {"a": {"$ref": f"#/$defs/k{i + 1}"}}} for i in range(200)}
            | {"k200": {"type": "integer"}},
            "$ref": "#/$defs/k0",
        },
    ],
    ids=["properties", "enum", "recursive", "chain"],
)
def test_a_schema_may_be_large(schema: dict[str, Any]) -> None:
    engine_with().add_request("a", greedy(json_schema=schema))
