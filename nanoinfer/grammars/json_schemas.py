"""Prepares a JSON schema for its compiler: what the compiler would let through wrongly, or would not survive, is refused.

llguidance refuses keywords that it does not implement, but a few that it does implement let invalid documents through. Each
function here deals with one of them.
"""

import json
import math
import re
from fractions import Fraction
from graphlib import TopologicalSorter
from typing import Any

from nanoinfer.grammars.json_bounds import compiled_bounds
from nanoinfer.grammars.json_keywords import NAMED
from nanoinfer.grammars.json_patterns import check_pattern, matches, may_be_finite, without_look_ahead
from nanoinfer.grammars.json_references import check_references, in_place, referred
from nanoinfer.grammars.json_sizes import check_sizes, levels

MAX_DEPTH = 64  # of a schema: objects and lists inside each other
# A number that all `multipleOf` divide, zeros at its end aside: the compiler has a state for each rest.
MAX_MULTIPLE = 20_000
CONTENT = ("contentEncoding", "contentMediaType", "contentSchema")
ANNOTATIONS = ("title", "description", "$comment", "default", "examples", *CONTENT)  # they say nothing about documents
ESCAPED = "\b\f\n\r\t"  # control characters that JSON has a short name for; \u0061 and its like are never written

_LONG_MONTH, _SHORT_MONTH = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])", "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
_DAYS = f"(?:{_LONG_MONTH}|{_SHORT_MONTH}|02-(?:0[1-9]|1[0-9]|2[0-8]))"
_LEAP_YEAR = "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
_DATE = f"(?:[1-9][0-9]{{3}}-{_DAYS}|{_LEAP_YEAR}-02-29)"
_HOUR_MINUTE = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = f"{_HOUR_MINUTE}:[0-5][0-9](?:\\.[0-9]{{1,9}})?(?:Z|[+-]{_HOUR_MINUTE})"
# The compiler's own date has a 29 February in every year, and its time a second 60 in every minute.
_UUID = "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
FORMATS = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}T{_TIME}$", "uuid": f"^{_UUID}$"}
COMPILED_FORMATS = ("duration", "email", "hostname", "ipv4", "ipv6", "uri")  # any other says nothing about documents


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
    check_sizes(schema)
    _check_multiples(schema)
    try:
        check_references(schema)
        prepared = _prepared(schema, schema)
        _check_names(prepared)
    except (AttributeError, TypeError) as error:  # a keyword has a value of another kind than it may have
        raise ValueError(f"is not a JSON schema: {error}") from error
    return prepared


def _check_multiples(schema: dict[str, Any]) -> None:
    """The compiler takes seconds and hundreds of megabytes for large ones, and multiplies those that may meet."""
    found = (part.get("multipleOf") for level in levels(schema) for part in level if isinstance(part, dict))
    multiples = {each for each in found if isinstance(each, int | float) and math.isfinite(each) and each > 0}
    common = math.lcm(*(int(str(Fraction(str(multiple)).numerator).rstrip("0")) for multiple in multiples))
    if common > MAX_MULTIPLE:
        raise ValueError(f"multipleOf={', '.join(map(str, sorted(multiples)))}: their least common multiple, zeros at its "
                         f"end aside, is {common}: must not exceed {MAX_MULTIPLE}")  # fmt: skip


def _prepared(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """A part of the schema `root`, checked, in the words that the compiler knows."""
    if "x-guidance" in schema:
        raise ValueError("x-guidance: is not implemented")
    if "$ref" in schema and "$id" in schema:
        raise ValueError("$id beside $ref: is not implemented, as drafts of JSON Schema differ in what it means")
    if "propertyNames" in schema:
        schema = _without_property_names(schema, root)
    _check_least_properties(schema)
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


def _without_property_names(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """`schema` with its `propertyNames`, which the compiler does not have, as patternProperties."""
    made = {keyword: value for keyword, value in schema.items() if keyword != "propertyNames"}
    names, required = schema["propertyNames"], schema.get("required") or ()
    pattern = _name_pattern(names, root)
    if pattern is None:
        return made
    if "patternProperties" in schema:
        raise ValueError("propertyNames beside patternProperties: is not implemented")
    if "properties" in made:
        made["properties"] = {name: matches(pattern, name) and inner for name, inner in made["properties"].items()}
    if all(name in required for name in names.get("enum", [None])):
        return {**made, "maxProperties": len(names["enum"])}  # all of these names, and so no other
    made["patternProperties"] = {pattern: made.pop("additionalProperties", True)}
    return {**made, "additionalProperties": False}


def _name_pattern(names: Any, root: dict[str, Any]) -> str | None:
    """The pattern of the names that are valid for the schema `names`; None if all are."""
    if isinstance(names, dict) and "string" in names.get("type", "string"):
        asked = {keyword: names[keyword] for keyword in names if keyword not in (*ANNOTATIONS, "type")}
        if "pattern" in asked or asked.get("format") not in (*FORMATS, *COMPILED_FORMATS):
            asked.pop("format", None)  # a pattern says more
        if asked.keys() <= {"minLength", "maxLength"}:
            return rf"^[\s\S]{{{asked.get('minLength', 0)},{asked.get('maxLength', '')}}}$" if asked else None
        match list(asked.items()):
            case [("pattern", str(pattern))]:
                return pattern
            case [("format", str(name))] if name in FORMATS:
                return FORMATS[name]
            case [("$ref", str(ref))]:
                return _name_pattern(referred(root, ref), root)
            case [("enum", list(values))] | [("const", *values)]:
                return f"^(?:{'|'.join(re.escape(text) for text in values if isinstance(text, str))})$"
    elif names is True:
        return None
    raise ValueError(f"propertyNames: {json.dumps(names)}: is not implemented")


def _check_names(root: dict[str, Any]) -> None:
    """When all names that may be written have been, the compiler goes on to another, and is stuck."""
    parts, graph = in_place(root)
    names: dict[int, set[str]] = {}
    patterns: dict[int, set[str]] = {}  # where there are no other names
    for node in TopologicalSorter(graph).static_order():
        part = parts[node]
        own = part.get("patternProperties", ()) if part.get("additionalProperties") is False else ()
        patterns[node] = set(own if all(map(may_be_finite, own)) else ()).union(
            *(patterns[each] for each in graph[node])
        )
        names[node] = {*part.get("properties", ()), *part.get("required", ())}.union(
            *(names[each] for each in graph[node])
        )
        for pattern in patterns[node]:
            if named := [name for name in names[node] if matches(pattern, name)]:
                raise ValueError(f"patternProperties, propertyNames: {pattern!r} also matches {min(named)!r} of properties "
                                 "or required: is only implemented where any number of names can match")  # fmt: skip


def _check_least_properties(schema: dict[str, Any]) -> None:
    """The compiler counts a key again that comes twice. Only keys that the schema names come only once."""
    least, required = schema.get("minProperties", 0), schema.get("required", [])
    named = len(set(map(str, required))) if isinstance(required, list) else 0
    if isinstance(least, int | float) and least > max(1, named):
        raise ValueError(
            f"minProperties={least}: is only implemented up to 1 or up to the number of required properties, here {named}"
        )


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
        elif isinstance(value, int | float) and not _is_exact(value):
            raise ValueError(f"{keyword}: {value}: must be a whole number that is a double, or have at most 15 digits")


def _is_exact(number: float) -> bool:
    """Whether the compiler writes `number` as it is."""
    if isinstance(number, int) and abs(number) < 2**63:
        return int(float(number)) == number
    return len(repr(number).partition("e")[0].replace(".", "").strip("-0")) <= 15
