"""Prepares a JSON schema for its compiler: what the compiler would let through wrongly is refused.

llguidance refuses keywords that it does not implement, but a few that it does implement let invalid documents through.

Numbers: where a bound is a whole number that is excluded, and the other bound is less than 1 away, llguidance 1.9 writes
the excluded number itself: `0` for more than 0 and at most 0.5, `-0` for at least -0.5 and less than 0. The other bound may
come from another part of the schema (allOf, $ref). It has no such fault with fractions, so a whole number that is excluded
becomes a fraction just beyond it. It knows bounds as doubles, reads only 15 digits of them exactly, and fails at those
beyond LARGEST. So a bound is moved to where it is exact, always inwards. Numbers between the two cannot be written then,
and nobody misses them.
"""

import json
import math
from collections.abc import Iterable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

from nanoinfer.sampling.grammar.patterns import COMPILED_FORMATS, FORMATS, check_pattern, matches, without_look_ahead

CONTENT = ("contentEncoding", "contentMediaType", "contentSchema")
ANNOTATIONS = ("title", "description", "$comment", "default", "examples", *CONTENT)  # they say nothing about documents
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")  # under names, not keywords
ESCAPED = "\b\f\n\r\t"  # control characters that JSON has a short name for; \u0061 and its like are never written
BEYOND = 1e-9  # or the distance to the next number that a double can hold, if that is larger
LARGEST = 2**63 - 1024  # a double, and the largest bound
# In which direction numbers are allowed.
SIGNS = {"minimum": 1, "exclusiveMinimum": 1, "maximum": -1, "exclusiveMaximum": -1}


def prepared_schema(text: str) -> dict[str, Any]:
    """The schema to compile for the schema `text`: it allows no other documents. ValueError with the reason when `text` is
    not a schema, or not one that can be compiled exactly."""
    try:
        schema = json.loads(text)
        if schema is True:
            return {}
        if not isinstance(schema, dict):
            raise ValueError(f"must be a JSON object, is {text[:50]}")
        return _prepared(schema)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error}") from error
    except (AttributeError, TypeError) as error:  # a keyword has a value of another kind than it may have
        raise ValueError(f"is not a JSON schema: {error}") from error


def _prepared(schema: dict[str, Any]) -> dict[str, Any]:
    """A part of a schema, checked, in the words that the compiler knows."""
    if "x-guidance" in schema:
        raise ValueError("x-guidance: is not implemented")
    if "$ref" in schema and "$id" in schema:
        raise ValueError("$id beside $ref: is not implemented, as drafts of JSON Schema differ in what it means")
    _check_names(schema)
    made: dict[str, Any] = {}
    patterns: list[str] = []
    for keyword, value in schema.items():
        if keyword in ANNOTATIONS or (keyword == "uniqueItems" and value is False):
            continue
        if keyword == "propertyNames" and _allows_all_names(value):
            continue
        if keyword in NAMED and isinstance(value, dict):
            _check_values(value, keyword)
            made[keyword] = {name: _prepared_any(inner) for name, inner in value.items()}
        elif keyword in ("const", "enum", "required"):
            _check_values(_scalars(value), keyword)
            made[keyword] = value
        elif keyword == "pattern" and isinstance(value, str):
            patterns += without_look_ahead(value)
        elif keyword == "format" and isinstance(value, str) and value not in COMPILED_FORMATS:
            patterns += [FORMATS[value]] if value in FORMATS else []
        elif keyword in SIGNS and isinstance(value, int | float) and not isinstance(value, bool):
            made[keyword] = _compiled_bound(keyword, value, schema.get("type") == "integer")
        else:
            made[keyword] = _prepared_any(value)
    if patterns:
        made["allOf"] = [*made.get("allOf", []), *({"pattern": pattern} for pattern in patterns)]
    return made


def _prepared_any(value: Any) -> Any:
    if isinstance(value, dict):
        return _prepared(value)
    return [_prepared_any(entry) for entry in value] if isinstance(value, list) else value


def _check_names(schema: dict[str, Any]) -> None:
    """The names of properties. The compiler counts a key again that comes twice; only keys that the schema names come once.
    And when all names that may be written have been, it goes on to another, and is stuck."""
    required = schema.get("required", [])
    least = schema.get("minProperties", 0)
    if least > max(1, len({*required})):
        raise ValueError(f"minProperties={least}: must not exceed 1 or the number of required properties")
    for pattern in schema.get("patternProperties", ()):
        check_pattern(pattern)
        named = [name for name in (*schema.get("properties", ()), *required) if matches(pattern, name)]
        if named and schema.get("additionalProperties") is False:
            raise ValueError(f"patternProperties: {pattern!r} also matches {named[0]!r} of properties or required: is not "
                             "implemented beside additionalProperties: false")  # fmt: skip


def _allows_all_names(names: Any) -> bool:
    if isinstance(names, dict):
        return names.get("type", "string") == "string" and names.keys() <= {"type", *ANNOTATIONS}
    return names is True


def _compiled_bound(keyword: str, value: float, whole: bool) -> float:
    """What to compile in place of a bound. ValueError for one that no number of 19 digits is within. `whole`: whether only
    whole numbers are allowed."""
    sign, is_excluded = SIGNS[keyword], keyword.startswith("exclusive")
    if value * sign > LARGEST:
        raise ValueError(f"{keyword}={value}: must be {'at most' if sign > 0 else 'at least'} {sign * LARGEST}")
    value = max(-(2**64), min(value, 2**64))  # what is beyond is far enough
    if value != int(value):
        rounding = ROUND_CEILING if sign > 0 else ROUND_FLOOR
        return float(Context(15, rounding).create_decimal(repr(value)))
    if abs(value) >= 2**52:
        # The next whole number that is a double, and allowed as the compiler writes it, with few digits.
        number = float(max(-LARGEST, min(value, LARGEST)))
        while any(sign * (each - value) < is_excluded for each in (int(number), int(Decimal(repr(number))))):
            number = math.nextafter(number, sign * math.inf)
        return int(number)
    if is_excluded and not whole:
        return value + sign * max(BEYOND, math.ulp(value))
    return value


def _scalars(value: Any) -> list[Any]:
    """All strings and numbers in a JSON value."""
    if isinstance(value, dict):
        return [*value, *(scalar for entry in value.values() for scalar in _scalars(entry))]
    return [scalar for entry in value for scalar in _scalars(entry)] if isinstance(value, list) else [value]


def _check_values(values: Iterable[Any], keyword: str) -> None:
    for value in values:
        if isinstance(value, str):
            if any((char < " " and char not in ESCAPED) or char == "\x7f" for char in value):
                raise ValueError(f"{keyword}: {value!r}: must not have control characters without a short escape")
        elif isinstance(value, int | float) and not _is_exact(value):
            raise ValueError(f"{keyword}: {value}: must be a whole number that is a double, or have at most 15 digits")


def _is_exact(number: float) -> bool:
    """Whether the compiler writes `number` as it is."""
    if isinstance(number, int) and abs(number) < 2**63:
        return int(float(number)) == number
    return len(repr(number).partition("e")[0].replace(".", "").strip("-0")) <= 15
