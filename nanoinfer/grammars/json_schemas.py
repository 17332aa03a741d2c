"""Prepares a JSON schema for its compiler: what the compiler would let through wrongly, or would not survive, is refused.

llguidance refuses keywords that it does not implement, but a few that it does implement let invalid documents through. Each
function here deals with one of them.
"""

import json
import math
from fractions import Fraction
from typing import Any

from nanoinfer.grammars.json_bounds import compiled_bounds
from nanoinfer.grammars.json_keywords import NAMED
from nanoinfer.grammars.json_patterns import check_pattern
from nanoinfer.grammars.json_sizes import check_sizes, levels

MAX_DEPTH = 64  # of a schema: objects and lists inside each other
MAX_MULTIPLE = (
    20_000  # a number that all `multipleOf` divide, zeros at its end aside: the compiler has a state for each rest
)
ANNOTATIONS = ("title", "description", "$comment", "default", "examples")  # they say nothing about documents
# The compiler takes no notice of these.
IGNORED_BY_COMPILER = ("contentEncoding", "contentMediaType", "contentSchema")
ESCAPED = "\b\f\n\r\t"  # control characters that JSON has a short name for; \u0061 and its like are never written

_LONG_MONTH, _SHORT_MONTH = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])", "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
_DAYS = f"(?:{_LONG_MONTH}|{_SHORT_MONTH}|02-(?:0[1-9]|1[0-9]|2[0-8]))"
_LEAP_YEAR = "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
_DATE = f"(?:[1-9][0-9]{{3}}-{_DAYS}|{_LEAP_YEAR}-02-29)"
_HOUR_MINUTE = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = f"{_HOUR_MINUTE}:[0-5][0-9](?:\\.[0-9]{{1,9}})?(?:Z|[+-]{_HOUR_MINUTE})"
# The compiler's own date has a 29 February in every year, and its time a second 60 in every minute.
FORMATS = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}T{_TIME}$"}


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
    _check_depth(schema)
    check_sizes(schema)
    _check_multiples(schema)
    return _prepared(schema)


def _check_depth(schema: Any) -> None:
    for depth, _ in enumerate(levels(schema), start=1):
        if depth > MAX_DEPTH:
            raise ValueError(f"has objects and lists inside each other: must not be more than {MAX_DEPTH} levels deep")


def _check_multiples(schema: dict[str, Any]) -> None:
    """The compiler takes seconds and hundreds of megabytes for large ones, and multiplies those that may meet."""
    multiples: set[int | float] = set()
    for value in (part for level in levels(schema) for part in level if isinstance(part, dict)):
        multiple = value.get("multipleOf")
        if isinstance(multiple, int | float) and math.isfinite(multiple) and multiple > 0:
            multiples.add(multiple)
    common = math.lcm(*(int(str(Fraction(str(multiple)).numerator).rstrip("0")) for multiple in multiples))
    if common > MAX_MULTIPLE:
        raise ValueError(f"multipleOf={', '.join(map(str, sorted(multiples)))}: their least common multiple, zeros at its "
                         f"end aside, is {common}: must not exceed {MAX_MULTIPLE}")  # fmt: skip


def _prepared(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema, checked, with its formats as patterns."""
    for keyword in ("x-guidance", *IGNORED_BY_COMPILER):
        if keyword in schema:
            raise ValueError(f"{keyword}: is not implemented")
    if "$ref" in schema and "$id" in schema:
        raise ValueError("$id beside $ref: is not implemented, as drafts of JSON Schema differ in what it means")
    _check_least_properties(schema)
    if isinstance(schema.get("pattern"), str):
        check_pattern(schema["pattern"])
    made: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in ANNOTATIONS:
            continue
        if keyword in NAMED and isinstance(value, dict):
            _check_text(value.keys(), keyword)
            if keyword == "patternProperties":
                for pattern in value:
                    check_pattern(pattern)
            made[keyword] = {name: _prepared_any(inner) for name, inner in value.items()}
        elif keyword in ("const", "enum", "required"):
            _check_text(_texts(value), keyword)
            made[keyword] = value
        else:
            made[keyword] = _prepared_any(value)
    made.update(compiled_bounds(schema))
    pattern = FORMATS.get(made["format"]) if isinstance(made.get("format"), str) else None
    if pattern is not None:
        del made["format"]
        made["allOf"] = [*made.get("allOf", []), {"pattern": pattern}]
    return made


def _prepared_any(value: Any) -> Any:
    if isinstance(value, dict):
        return _prepared(value)
    return [_prepared_any(entry) for entry in value] if isinstance(value, list) else value


def _check_least_properties(schema: dict[str, Any]) -> None:
    """The compiler counts a key again that comes twice. Only keys that the schema names come only once."""
    least, required = schema.get("minProperties", 0), schema.get("required", [])
    named = len(set(map(str, required))) if isinstance(required, list) else 0
    if isinstance(least, int | float) and least > max(1, named):
        raise ValueError(
            f"minProperties={least}: is only implemented up to 1 or up to the number of required properties, here {named}"
        )


def _texts(value: Any) -> list[str]:
    """All strings in a JSON value."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [*value, *(text for entry in value.values() for text in _texts(entry))]
    return [text for entry in value for text in _texts(entry)] if isinstance(value, list) else []


def _check_text(texts: Any, keyword: str) -> None:
    for text in texts:
        wrong = next((char for char in text if (char < " " and char not in ESCAPED) or char == "\x7f"), None)
        if wrong is not None:
            raise ValueError(f"{keyword}: has the control character U+{ord(wrong):04X} in {text!r}: must not")
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise ValueError(f"{keyword}: {text!r}: must be text that can be encoded as UTF-8")
