"""Arguments that are not written as one JSON object: their schemas, one by one, and the types that these allow."""

import json
import re
from collections.abc import Mapping
from typing import Any

ANNOTATIONS = {"title", "description", "default", "examples", "$comment", "$schema", "$defs", "definitions"}
HARMLESS = {"type", "properties", "required", "additionalProperties"} | ANNOTATIONS
TYPES = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    dict: "object",
    list: "array",
}


def properties_of(name: str, schema: Any, names: re.Pattern[str]) -> list[tuple[str, dict[str, Any], bool]]:
    """(name, schema, whether it is required) of the arguments of a function. ValueError where its schema says more than
    this, or where a name is none of `names`."""
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise ValueError(f"the parameters of {name!r}: must be of type object")
    check_keys(schema, HARMLESS, f"the parameters of {name!r}")
    properties, required = schema.get("properties", {}), schema.get("required", [])
    for each in (name, *properties, *required):
        if not each or not names.fullmatch(each):
            raise ValueError(f"the parameters of {name!r}: {each!r}: is no name in this model's tool-call format")
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    found = {**properties, **{key: {} for key in required if key not in properties}}
    return [
        (key, {**shared, **each} if isinstance(each, dict) else each, key in required)
        for key, each in found.items()
        if each is not False
    ]


def check_keys(schema: Mapping[str, Any], known: set[str], where: str) -> None:
    """ValueError where a schema says more than `known`."""
    if others := sorted(schema.keys() - known):
        raise ValueError(f"{where}: {others[0]}: cannot be demanded in this model's tool-call format")


def types_of(schema: Any, root: Any) -> set[str] | None:
    """The JSON types that a value may have, None if that is not known. `root`: where references are looked up."""
    if not isinstance(schema, dict):
        return None
    types: set[str] | None = None
    if isinstance(kind := schema.get("type"), str | list):
        types = {kind} if isinstance(kind, str) else {*kind}
    elif "const" in schema or isinstance(schema.get("enum"), list):
        types = {TYPES[type(value)] for value in schema.get("enum", [schema.get("const")])}
    elif isinstance(reference := schema.get("$ref"), str) and reference.startswith("#/"):
        found = root
        for key in reference[2:].split("/"):
            found = found.get(key) if isinstance(found, Mapping) else None
        return None if found is schema or not isinstance(found, dict) or "$ref" in found else types_of(found, root)
    elif isinstance(parts := schema.get("anyOf", schema.get("oneOf")), list):
        each = [types_of(part, root) for part in parts]
        types = None if None in each else set().union(*(inner for inner in each if inner))
    return types | {"integer"} if types and "number" in types else types


def type_of(text: str) -> str | None:
    """The type of a JSON text; None if it is no JSON."""
    try:
        return TYPES[type(json.loads(text, parse_constant=_refuse))]
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
