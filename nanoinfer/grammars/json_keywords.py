"""Keywords of JSON schemas that look misspelt. The standard says that unknown ones are ignored, so they are no error; but
when a schema is refused for another reason, they are worth a word."""

import json
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from nanoinfer.requests.keywords import CLOSE

KEYWORDS = (
    *("$anchor", "$comment", "$defs", "$id", "$ref", "$schema", "additionalItems", "additionalProperties", "allOf"),
    *("anyOf", "const", "contains", "contentEncoding", "contentMediaType", "contentSchema", "default", "definitions"),
    *("dependencies", "dependentRequired", "dependentSchemas", "deprecated", "description", "else", "enum", "examples"),
    *("exclusiveMaximum", "exclusiveMinimum", "format", "if", "items", "maxContains", "maxItems", "maxLength"),
    *(
        "maxProperties",
        "maximum",
        "minContains",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "multipleOf",
        "not",
    ),
    *("nullable", "oneOf", "pattern", "patternProperties", "prefixItems", "properties", "propertyNames", "readOnly"),
    *("required", "then", "title", "type", "unevaluatedItems", "unevaluatedProperties", "uniqueItems", "writeOnly"),
)
VALUES = ("const", "enum", "default", "examples", "required", "dependentRequired")  # what is inside is no schema
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")  # under names, not keywords
MOST = 100  # unknown keywords that are compared with the known ones
LONGEST = 40  # characters of one


def keyword_hint(text: str) -> str:
    """What a refusal of the schema `text` adds about a keyword that is nearly a known one; empty if there is none."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    unknown = dict.fromkeys(name for name in _keywords(schema) if name not in KEYWORDS and len(name) <= LONGEST)
    for name in list(unknown)[:MOST]:
        if close := get_close_matches(name, KEYWORDS, n=1, cutoff=CLOSE):
            return f"; {name!r} is no keyword of JSON schemas: did you mean {close[0]!r}?"
    return ""


def _keywords(schema: Any) -> Iterator[str]:
    """All names that stand where a keyword belongs."""
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        if not isinstance(value, dict):
            continue
        for name, inside in value.items():
            yield name
            if name in NAMED and isinstance(inside, dict):
                waiting += inside.values()
            elif name not in VALUES:
                waiting.append(inside)
