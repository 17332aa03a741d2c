"""Grammars that cannot be followed or would take the compiler too long: refused on arrival, by name."""

import json
import re
from typing import Any

import pytest

from nanoinfer import SamplingParams
from nanoinfer.errors import InvalidRequestError
from tests.helpers.engines import LetterTokenizer, greedy, make_engine
from tests.helpers.grammar_engines import engine_with, one


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"regex": "("}, r"^story: regex: cannot be compiled: .*unclosed group"),
        ({"regex": "a" * 5001}, r"^story: regex: has 5001 characters: must not exceed 5000"),
        ({"regex": "(" * 101 + ")" * 101}, r"^story: regex: has 101 opening brackets .*must not exceed 100"),
        ({"grammar": "start: other"}, r"^story: grammar: cannot be compiled: .*other"),
        ({"grammar": "other: /a/"}, r"^story: grammar: cannot be compiled: "),
        ({"grammar": '{"type": "null"}'}, r"^story: grammar: cannot be compiled: "),
        ({"grammar": ""}, r"^story: grammar: cannot be compiled: "),
        ({"grammar": 'start: %lark { start: "a" }'}, r"^story: grammar: %lark is not implemented"),
        ({"grammar": 'start: "%json {}"'}, r"^story: grammar: %json: must not stand in a string"),
        ({"grammar": "start: %json nope"}, r"^story: grammar: %json: what follows is not JSON"),
        (
            {"grammar": 'start: %json {"minProperties": 3}'},
            r"^story: grammar: %json: minProperties=3: ",
        ),
        (
            {"grammar": 'start: %json {"x-guidance": {"key_separator": 1}}'},
            r"grammar: %json: x-guidance.key_separator=1",
        ),
        ({"grammar": "root ::= other"}, r"^story: grammar: cannot be read as GBNF: .*other"),
        ({"grammar": 'root ::= "'}, r"^story: grammar: cannot be read as GBNF: "),
        ({"grammar": "root ::= [^a&&b]"}, r"^story: grammar: '\[\^a&&b': && "),
        ({"json_schema": "{"}, r"^story: json_schema: is not JSON"),
        ({"json_schema": "5"}, r"^story: json_schema: must be a JSON object, is 5"),
        ({"json_schema": {"not": {}}}, r"^story: json_schema: cannot be compiled: .*\"not\""),
        ({"tool_calls": {"say": {"not": {}}}}, r"^story: tool_calls: cannot be compiled: .*\"not\""),
        ({"tool_calls": {"say": 5}}, r"^story: tool_calls: the parameters of 'say': must be a JSON object, is 5"),
        (
            {"tool_calls": {"ok": {}, "say": {"x-guidance": {}, "maxLenght": 2}}},
            r"^story: tool_calls: the parameters of 'say': x-guidance: is not implemented; 'maxLenght' is no keyword",
        ),
        (
            {"tool_calls": {f"f{i}": {} for i in range(1001)}},
            r"^story: tool_calls: has 1001 functions: must not exceed",
        ),
        ({"json_schema": "false"}, r"^story: json_schema: must be a JSON object"),
    ],
)
def test_what_cannot_be_compiled_is_refused_on_arrival(fields: dict[str, Any], message: str) -> None:
    engine = engine_with()
    for _ in range(2):  # a refusal is not forgotten
        with pytest.raises(InvalidRequestError, match=message):
            engine.add_request("a", greedy(**fields), name="story")
    assert not engine.has_unfinished()
    assert one(engine, regex="bcd").text == "bcd"


def test_a_grammar_needs_a_tokenizer_that_can_be_read() -> None:
    engine = make_engine()
    engine.builder.tokenizer = engine.grammars._tokenizer = None
    with pytest.raises(InvalidRequestError, match=r"^prompt: regex: needs a tokenizer, but this model has none"):
        engine.add_request([5], greedy(regex="a"))

    class Mumbles(LetterTokenizer):
        def decode(self, token_ids: Any) -> str:
            return "mm" * len(token_ids) + "h" * (len(token_ids) > 5)

    with pytest.raises(InvalidRequestError, match=r"^prompt: choice: this model's tokenizer cannot serve grammars: "):
        make_engine(tokenizer=Mumbles()).add_request([5], greedy(choice=["a"]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"regex": "a", "choice": ["b"]}, "regex and choice: at most one of"),
        ({"regex": 5}, "regex=5: must be a string"),
        ({"grammar": ["a"]}, "grammar=.*: must be a string"),
        ({"choice": []}, "choice=.*: must be a list of at least one"),
        ({"choice": "yes"}, "choice='yes': must be a list"),
        ({"choice": ["a", ""]}, "none may be empty"),
        ({"choice": [1]}, "must be a list"),
        ({"json_schema": 5}, "json_schema=5: must be a dict or its text"),
        ({"json_schema": {"a": object()}}, "json_schema: cannot be written as JSON"),
        ({"json_schema": {"minimum": float("nan")}}, "json_schema: cannot be written as JSON"),
        ({"tool_calls": []}, r"tool_calls=\[\]: must map the name of each function to a JSON schema"),
        ({"tool_calls": {}}, "tool_calls={}: must map .* at least one"),
        ({"tool_calls": {"": {}}}, "tool_calls=.*: must map"),
        ({"tool_calls": {"say": object()}}, "tool_calls: cannot be written as JSON"),
        ({"tool_calls": {"say": {}}, "regex": "a"}, "regex and tool_calls: at most one of"),
        ({"parallel_tool_calls": False, "min_new_tokens": 2}, "min_new_tokens=2: must be 0 with parallel_tool_calls"),
        ({"tool_calls": {"say": {}}, "parallel_tool_calls": 0}, "parallel_tool_calls=0: must be True or False"),
    ],
)
def test_parameters_of_a_wrong_kind_are_refused_when_they_are_made(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(**fields)


@pytest.mark.parametrize(
    ("schema", "hint"),
    [
        (
            {"type": "string", "maxLenght": 5, "not": {}},
            "'maxLenght' is no keyword of JSON schemas: did you mean 'maxLength'?",
        ),
        ({"properties": {"a": {"requierd": ["b"], "not": {}}}}, "did you mean 'required'?"),
        ({"properties": {"propertys": {"not": {}}}, "default": {"titel": 1}, "enum": [{"typ": 1}]}, None),
        ({"not": {}, "speed": 5, "x" * 41: 1}, None),
    ],
)
def test_a_schema_that_is_refused_anyway_gets_a_hint_about_a_misspelt_keyword(
    schema: dict[str, Any], hint: str | None
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        engine_with().add_request("a", greedy(json_schema=schema))
    assert str(caught.value).endswith(hint or "")
    assert ("is no keyword" in str(caught.value)) == (hint is not None)


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


INTEGER = {"type": "integer"}
CHAIN = {f"k{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/k{i + 1}"}}} for i in range(200)}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"json_schema": {"properties": {f"k{i}": INTEGER for i in range(1001)}}},
            "has 1001 properties: must not exceed 1000",
        ),
        (
            {"json_schema": {"anyOf": [{"properties": {f"k{i}": INTEGER for i in range(501)}}] * 2}},
            "has 1002 properties: must not exceed 1000",
        ),
        (
            {"json_schema": {"required": [f"k{i}" for i in range(1001)]}},
            "1001 required properties: must not exceed 1000",
        ),
        (
            {"json_schema": {"patternProperties": {f"^k{i}$": INTEGER for i in range(101)}}},
            "has 101 patternProperties: must not exceed 100",
        ),
        ({"json_schema": {"enum": list(range(5001))}}, "has 5001 values in enum: must not exceed 5000"),
        ({"choice": [str(i) for i in range(10_001)]}, "has 10001 choices: must not exceed 10000"),
    ],
    ids=["properties", "of all parts", "required", "patternProperties", "enum", "choice"],
)
def test_what_would_take_the_compiler_too_long_is_not_compiled(
    fields: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(*args: Any, **options: Any) -> None:
        raise AssertionError("it was compiled")

    monkeypatch.setattr("llguidance.LLMatcher", compiled)
    compiled.grammar_from_json_schema = compiled.grammar_from_lark = compiled  # type: ignore[attr-defined]
    with pytest.raises(InvalidRequestError, match=re.escape(message)):
        engine_with().add_request("a", greedy(**fields))


def test_a_schema_at_these_limits_is_compiled() -> None:
    recursive = {"type": "object", "properties": {"next": {"$ref": "#/$defs/k"}}}
    for schema in (
        {
            "type": "object",
            "properties": {f"k{i}": INTEGER for i in range(200)},
            "required": [f"k{i}" for i in range(200)],
        },
        {"enum": [f"value {i}" for i in range(1000)]},
        {"type": "object", "properties": {f"k{i}": INTEGER for i in range(1000)}},
        {"$defs": {"k": recursive}, "$ref": "#/$defs/k"},
        {"$defs": CHAIN | {"k200": INTEGER}, "$ref": "#/$defs/k0"},
    ):
        engine_with().add_request("a", greedy(json_schema=schema))
