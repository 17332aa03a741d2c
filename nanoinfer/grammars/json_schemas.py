"""Prepares a JSON schema for its compiler: what the compiler would let through wrongly, or would not survive, is refused.

llguidance refuses keywords that it does not implement, but a few that it does implement let invalid documents through. Each
function here deals with one of them.
"""

import json
from typing import Any

from nanoinfer.grammars.json_names import (
    ANNOTATIONS,
    check_least_properties,
    check_names,
    check_references,
    levels,
    without_property_names,
)
from nanoinfer.grammars.json_numbers import check_multiples, compiled_bounds, is_exact
from nanoinfer.grammars.patterns import COMPILED_FORMATS, FORMATS, check_pattern, without_look_ahead

MAX_DEPTH = 64  # of a schema: objects and lists inside each other
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")  # under names, not keywords
ESCAPED = "\b\f\n\r\t"  # control characters that JSON has a short name for; \u0061 and its like are never written


def prepared_schema(text: str) -> dict[str, Any]:
    """The schema to compile for the schema `text`: it allows no other documents. ValueError with the reason when `text` is
    not a schema, or not one that can be compiled exactly."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from error
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise ValueError(f"must be a JSON object, is {json.dumps(schema)[:50]}")
    if sum(1 for _ in levels(schema)) > MAX_DEPTH:
        raise ValueError(f"has objects and lists inside each other: must not be more than {MAX_DEPTH} levels deep")
    check_multiples(schema)
    try:
        check_references(schema)
        prepared = _prepared(schema, schema)
        check_names(prepared)
    except (AttributeError, TypeError) as error:  # a keyword has a value of another kind than it may have
        raise ValueError(f"is not a JSON schema: {error}") from error
    return prepared


def _prepared(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """A part of the schema `root`, checked, in the words that the compiler knows."""
    if "x-guidance" in schema:
        raise ValueError("x-guidance: is not implemented")
    if "$ref" in schema and "$id" in schema:
        raise ValueError("$id beside $ref: is not implemented, as drafts of JSON Schema differ in what it means")
    if "propertyNames" in schema:
        schema = without_property_names(schema, root)
    check_least_properties(schema)
    made: dict[str, Any] = {}
    patterns: list[str] = []
    for keyword, value in schema.items():
        if keyword in ANNOTATIONS or (keyword == "uniqueItems" and value is False):
            continue
        if keyword in NAMED and isinstance(value, dict):
            _check_values(value, keyword)
            if keyword == "patternProperties":
                for pattern in value:
                    check_pattern(pattern)
            made[keyword] = {name: _prepared_any(inner, root) for name, inner in value.items()}
        elif keyword in ("const", "enum", "required"):
            _check_values(_scalars(value), keyword)
            made[keyword] = value
        elif keyword == "pattern" and isinstance(value, str):
            patterns += without_look_ahead(value)
        elif keyword == "format" and isinstance(value, str) and value not in COMPILED_FORMATS:
            patterns += [FORMATS[value]] if value in FORMATS else []
        else:
            made[keyword] = _prepared_any(value, root)
    made.update(compiled_bounds(schema))
    if patterns:
        made["allOf"] = [*made.get("allOf", []), *({"pattern": pattern} for pattern in patterns)]
    return made


def _prepared_any(value: Any, root: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return _prepared(value, root)
    return [_prepared_any(entry, root) for entry in value] if isinstance(value, list) else value


def _scalars(value: Any) -> list[Any]:
    """All strings and numbers in a JSON value."""
    if isinstance(value, dict):
        return [*value, *(scalar for entry in value.values() for scalar in _scalars(entry))]
    return [scalar for entry in value for scalar in _scalars(entry)] if isinstance(value, list) else [value]


def _check_values(values: Any, keyword: str) -> None:
    for value in values:
        if isinstance(value, str):
            wrong = next((char for char in value if (char < " " and char not in ESCAPED) or char == "\x7f"), None)
            if wrong is not None:
                raise ValueError(f"{keyword}: has the control character U+{ord(wrong):04X} in {value!r}: must not")
            if any("\ud800" <= char <= "\udfff" for char in value):
                raise ValueError(f"{keyword}: {value!r}: must be text that can be encoded as UTF-8")
        elif isinstance(value, int | float) and not is_exact(value):
            raise ValueError(f"{keyword}: {value}: must be a whole number that is a double, or have at most 15 digits")
