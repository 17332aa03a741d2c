"""Keywords of JSON schemas that the compiler lacks, or follows only in part. Oracles: `jsonschema`, and Python's `re`."""

import itertools
import json
import math
import random
import re
from decimal import Decimal
from typing import Annotated, Any

import jsonschema
import numpy as np
import pytest
from pydantic import Field, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from nanoinfer.sampling.grammar.patterns import without_look_ahead
from tests.helpers.grammars import accepts, matcher_of, random_output


def compiles_to(schema: Any, document: Any) -> bool:
    """Whether `document` may be written, with its keys in any order."""
    orders = itertools.permutations(document.items()) if isinstance(document, dict) else [document]
    texts = [dict(each) if isinstance(document, dict) else each for each in orders]
    return any(
        accepts(matcher_of("json_schema", json.dumps(schema)), json.dumps(text, separators=(",", ":")))
        for text in texts
    )


# --- what asks for nothing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "format": "unheard-of"},
        {"type": "string", "format": "uuid4", "contentEncoding": "base64", "contentMediaType": "image/png"},
        {"contentMediaType": "application/json", "contentSchema": {"type": "integer"}},
        {"uniqueItems": False},
        {"propertyNames": True},
        {"propertyNames": {"type": "string", "title": "a name"}},
    ],
    ids=str,
)
def test_what_asks_for_nothing_changes_nothing(schema: dict[str, Any]) -> None:
    for document in ("a", "", [1, 1], {"": 1, "b": 1}):
        assert compiles_to(schema, document) == jsonschema.Draft202012Validator(schema).is_valid(document)


# --- names of properties ---------------------------------------------------------------------------------------------

NAMES = ("a", "b", "ab", "B1", "x-y")
INTEGER = {"type": "integer"}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": INTEGER}, "patternProperties": {"^a": {"minimum": 2}, "^x": {}}},
        {"properties": {"B1": {}}, "patternProperties": {"^[ab]$": INTEGER}, "additionalProperties": False},
        {"patternProperties": {"^a$": INTEGER}, "required": ["a"]},
    ],
    ids=str,
)
def test_names_are_followed_exactly_and_an_output_is_never_stuck(schema: dict[str, Any]) -> None:
    schema, rng = {"type": "object", **schema}, random.Random(0)
    valid = jsonschema.Draft202012Validator(schema).is_valid
    for count in range(3):
        for names in itertools.combinations(NAMES, count):
            for values in itertools.product((1, 5, "x"), repeat=count):
                document = dict(zip(names, values, strict=True))
                assert compiles_to(schema, document) == valid(document), document
    for _ in range(20):
        output = random_output(matcher_of("json_schema", json.dumps(schema)), rng, most=40)
        assert output is None or valid(json.loads(output))


@pytest.mark.parametrize(
    "schema",
    [
        {"propertyNames": False},
        {"propertyNames": {"pattern": "a"}},
        {"propertyNames": {"enum": ["a", "b"]}},
        {"propertyNames": {"type": "integer"}},
        {"properties": {"a": {}}, "patternProperties": {"^a$": {}}, "additionalProperties": False},
        {"required": ["a"], "patternProperties": {"^[ab]{1,2}$": {}}, "additionalProperties": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("nested", [False, True], ids=["top", "nested"])
def test_names_that_cannot_be_followed_exactly_are_refused(schema: dict[str, Any], nested: bool) -> None:
    inside: dict[str, Any] = {"properties": {"x": {"type": "object", **schema}}} if nested else schema
    with pytest.raises(ValueError, match=r"propertyNames|patternProperties"):
        matcher_of("json_schema", json.dumps({"type": "object", **inside}))


# --- references ------------------------------------------------------------------------------------------------------

A = {"$ref": "#/$defs/a"}


def test_a_reference_that_leads_back_to_a_part_is_followed() -> None:
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"type": "null"}, {"type": "array", "items": A}]}}}
    assert compiles_to(schema, [None, [[], None]])
    assert not compiles_to(schema, [1])


# --- numbers ---------------------------------------------------------------------------------------------------------

INT64 = {"minimum": -(2**63), "maximum": 2**63 - 1}


@pytest.mark.parametrize("kind", ["integer", "number"])
@pytest.mark.parametrize(
    "bounds",
    [
        INT64,
        {"minimum": float(-(2**63)), "maximum": float(2**63)},
        {"exclusiveMinimum": -(2**63) - 1, "exclusiveMaximum": 2**63},
        {"minimum": 0, "maximum": 2**64 - 1},
        {"exclusiveMinimum": 2**53},
        {"minimum": 2**53 + 1, "exclusiveMaximum": 2**60},
        {"maximum": -(2**53) - 1},
        {"minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308},
        {"minimum": 123456789.12345678, "maximum": 123456790.12345678},
    ],
    ids=str,
)
def test_bounds_that_a_double_does_not_hold_are_kept(bounds: dict[str, float], kind: str) -> None:
    schema = {"type": kind, **bounds}
    text_of_schema = json.dumps(schema)
    for bound in bounds.values():
        for near in {
            bound,
            *(int(min(max(bound, -(2**64)), 2**64)) + step for step in (-2048, -3, -2, -1, 0, 1, 2, 3, 2048)),
        }:
            text = repr(int(near) if kind == "integer" else near)
            written = accepts(matcher_of("json_schema", text_of_schema), text)
            assert not written or jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)), text
    far = [
        text
        for text in ("-9223372036854770000", "9223372036854770000", "1000000000000000000", "123456790")
        if accepts(matcher_of("json_schema", text_of_schema), text)
    ]
    assert far


def test_integers_near_the_bounds_of_64_bits_can_be_written() -> None:
    schema = json.dumps({"type": "integer", **INT64})
    for number in (-(2**63) + 1024, -(2**53) - 1, 0, 2**53 + 1, 2**63 - 1024):
        assert accepts(matcher_of("json_schema", schema), str(number))


@pytest.mark.parametrize(
    "schema",
    [
        {"minimum": 2**64},
        {"maximum": -1e300},
        {"const": 2**53 + 1},
        {"enum": [1, -(2**63)]},
        {"const": 123456789.12345679},
        {"enum": [{"a": [2**63 - 1]}]},
    ],
    ids=str,
)
def test_numbers_that_would_be_written_wrongly_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(schema))):
        matcher_of("json_schema", json.dumps(schema))


@pytest.mark.parametrize("number", [2**53, 2**60, 10**15 + 1, 0.1, -1e-7, 1e20, 12345.6789])
def test_a_constant_number_is_written(number: float) -> None:
    output = random_output(matcher_of("json_schema", json.dumps({"const": number})), random.Random(0))
    assert output is not None
    assert json.loads(output) == number


BOUNDS = (-10.5, -10, -1.5, -1, -0.75, -0.05, 0, 0.001, 0.05, 0.75, 1, 1.5, 9.99, 10, 10.25, 1e6)
WRITTEN = (
    "0 -0 0.0 -0.0 0e0 -0e1 0.00 1 1.0 -1 -1.0 1e0 10 10.0 -10 -10.0 1e1 0.5 0.50 -0.5 0.4 0.0005 0.0010 -0.01 0.01"
)
NUMBERS = (*WRITTEN.split(), "10.1", "10.49", "-10.2", "-1.2", "1.2", "9.990")


def wrongly_allowed(schema: dict[str, Any]) -> list[str]:
    text_of_schema, valid = json.dumps(schema), jsonschema.Draft202012Validator(schema).is_valid
    near = [json.dumps(value) for value in _bounds(schema)]
    invalid = [text for text in (*NUMBERS, *near) if not valid(json.loads(text))]
    return [text for text in invalid if accepts(matcher_of("json_schema", text_of_schema), text)]


def _bounds(schema: Any) -> list[float]:
    if isinstance(schema, list):
        return [value for each in schema for value in _bounds(each)]
    if isinstance(schema, dict):
        return [value for each in schema.values() for value in _bounds(each)]
    return [schema] if isinstance(schema, int | float) else []


@pytest.mark.parametrize(
    ("schema", "within"),
    [
        ({"exclusiveMinimum": 0, "maximum": 0.5}, "0.25"),
        ({"exclusiveMinimum": 10, "maximum": 10.5}, "10.25"),
        ({"minimum": -0.5, "exclusiveMaximum": 0}, "-0.25"),
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 1}, "0.001"),
        ({"allOf": [{"exclusiveMinimum": 0}, {"maximum": 0.5}]}, "0.25"),
        ({"$defs": {"low": {"exclusiveMinimum": 10}}, "$ref": "#/$defs/low", "maximum": 10.5}, "10.5"),
        ({"type": "integer", "exclusiveMinimum": 0, "maximum": 2}, "1"),
        ({"type": ["integer", "null"], "exclusiveMinimum": 0}, "1"),
        ({"allOf": [{"type": "integer"}, {"exclusiveMinimum": 0, "exclusiveMaximum": 2}]}, "1"),
        ({"type": "number", "exclusiveMinimum": 1e15}, "1000000000000001"),
    ],
    ids=str,
)
def test_an_excluded_bound_is_not_written(schema: dict[str, Any], within: str) -> None:
    assert not wrongly_allowed(schema)
    assert accepts(matcher_of("json_schema", json.dumps(schema)), within)


@pytest.mark.parametrize("kind", ["number", "integer"])
def test_random_bounds_allow_no_text_that_is_invalid(kind: str) -> None:
    rng = np.random.default_rng(7)
    cases = list(
        itertools.product(
            itertools.combinations(BOUNDS, 2), ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
        )
    )
    for i in rng.permutation(len(cases))[:40]:
        (low, high), least, most = cases[i]
        schema = {"type": kind, least: low, most: high}
        if i % 2:
            schema = {"type": kind, "allOf": [{least: low}, {most: high}]}
        if kind == "integer" and math.floor(low) + 1 > math.ceil(high) - 1:
            continue  # there may be none, and so the schema is refused
        assert not wrongly_allowed(schema), schema


# --- look-ahead ------------------------------------------------------------------------------------------------------


def decimal_patterns() -> list[str]:
    """As pydantic 2.12 and 2.13 write them for a Decimal, and as 2.14 does if it is asked."""
    begin, patterns = r"^(?!^[-+.]*$)[+-]?0*", []
    for digits, places in ((5, 2), (2, 4), (3, 3), (1, 0)):
        whole, check = f"{{0,{max(0, digits - places)}}}", rf"(?=[\d.]{{1,{digits + 1}}}0*$)"
        patterns += [
            begin + rf"(?:\d{whole}|{check}\d{whole}\.\d{{0,{places}}}0*$)",
            begin + rf"(?:\d{{0,{digits}}}|{check}\d*\.\d*0*$)",
            begin + rf"\d*\.?\d{{0,{places}}}0*$",
        ]
    return [*patterns, begin + r"\d*\.?\d*$", *_built_patterns()]


def _built_patterns() -> list[str]:
    class WithPatterns(GenerateJsonSchema):
        def get_decimal_pattern(self, schema: Any) -> str:
            return self.build_decimal_pattern(schema)

    limits = ({}, {"max_digits": 5}, {"decimal_places": 2}, {"max_digits": 5, "decimal_places": 2})
    types = [TypeAdapter(Annotated[Decimal, Field(**limit)]) for limit in limits]
    schemas = [each.json_schema(schema_generator=WithPatterns, mode="serialization") for each in types]
    return [schema["pattern"] for schema in schemas if "pattern" in schema]


PASSWORDS = (r"^(?=.*[a-z])(?=.*\d)[a-z\d!]{3,}$", r"^(?=.{1,4}\.?$)[a-z]+(?:\.[a-z]+)*\.?$", "^(?=a|b)[ab1]+$")
WORDS = "-5 -12.50 123456 12345.678 1.23000 -.5 1e5 1E+3 a 1a .a +- aa1 ab!1 a1 a.b a.b. abcde. abcd. b1 1b é"
TEXTS = [*WORDS.split(), *("".join(each) for count in range(5) for each in itertools.product("01.+", repeat=count))]


@pytest.mark.parametrize("pattern", [*decimal_patterns(), *PASSWORDS])
def test_a_look_ahead_at_the_beginning_means_what_it_says(pattern: str) -> None:
    patterns = without_look_ahead(pattern)
    assert not any(look in each for each in patterns for look in ("(?=", "(?!"))
    for text in TEXTS:
        assert all(re.search(each, text) for each in patterns) == bool(re.search(pattern, text)), text
    for text in random.Random(0).sample(TEXTS, 40):
        assert compiles_to({"type": "string", "pattern": pattern}, text) == bool(re.search(pattern, text)), text


@pytest.mark.parametrize("pattern", ["^(?!admin).+$", "a(?=b)b", "^(?=a)a|b$", "(?<=a)b", r"^(?!^[-+.]*$)a|b"])
def test_other_look_around_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        matcher_of("json_schema", json.dumps({"type": "string", "pattern": pattern}))


# --- regex -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("regex", "text"),
    [
        ("a|bc", "bc"),
        ("^a$", "a"),
        (r"\d\w\s", "٣é\u00a0"),
        (r"(?-u)\d", "5"),
        ("(?i)a(?s:.)(?P<n>b)", "A\nB"),
        (r"\p{Greek}[[:alpha:]&&[^b]]\x41\u{42}", "αcAB"),
        ("a*?b{2,}", "aabb"),
    ],
)
def test_a_regex_is_in_rusts_syntax_and_matches_the_whole_output(regex: str, text: str) -> None:
    assert accepts(matcher_of("regex", regex), text)
    assert not accepts(matcher_of("regex", regex), text + "~")


@pytest.mark.parametrize("regex", ["(?=a)a", r"(a)\1", r"\ba", "a^b", "(?>a)"])
def test_what_rusts_syntax_lacks_is_refused(regex: str) -> None:
    with pytest.raises(ValueError, match="invalid regex"):
        matcher_of("regex", regex)
