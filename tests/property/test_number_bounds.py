"""Bounds of numbers in JSON schemas: no text is allowed that `jsonschema` calls invalid, and the obvious ones are."""

import itertools
import json
import math
from typing import Any

import jsonschema
import numpy as np
import pytest

from nanoinfer.grammars.matcher import Matcher
from tests.helpers.grammars import EOS, byte_tokens, matcher_of

BOUNDS = (-10.5, -10, -1.5, -1, -0.75, -0.05, 0, 0.001, 0.05, 0.75, 1, 1.5, 9.99, 10, 10.25, 1e6)
WRITTEN = (
    "0 -0 0.0 -0.0 0e0 -0e1 0.00 1 1.0 -1 -1.0 1e0 10 10.0 -10 -10.0 1e1 0.5 0.50 -0.5 0.4 0.0005 0.0010 -0.01 0.01"
)
TEXTS = (*WRITTEN.split(), "10.1", "10.49", "-10.2", "-1.2", "1.2", "9.990")

SINGLE = byte_tokens()


def allows(matcher: Matcher, text: str) -> bool:
    """Whether `text` is a complete output."""
    tokens = [*(SINGLE[byte] for byte in text.encode()), EOS]
    return matcher.count_valid(tokens) == len(tokens)


def wrongly_allowed(schema: dict[str, Any]) -> list[str]:
    matcher, valid = matcher_of("json_schema", json.dumps(schema)), jsonschema.Draft202012Validator(schema).is_valid
    near = [json.dumps(value) for value in _bounds(schema)]
    return [text for text in (*TEXTS, *near) if allows(matcher, text) and not valid(json.loads(text))]


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
    assert allows(matcher_of("json_schema", json.dumps(schema)), within)


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
