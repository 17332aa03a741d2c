"""Names in a JSON schema: what its references name, and which names its properties may have.

The compiler would find out too late, when the output is written, that a reference has no content, or that no name is left.
And it does not have `propertyNames`, which become patternProperties.
"""

import json
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any
from urllib.parse import unquote

from nanoinfer.grammars.patterns import COMPILED_FORMATS, FORMATS, matches, may_be_finite

CONTENT = ("contentEncoding", "contentMediaType", "contentSchema")
ANNOTATIONS = ("title", "description", "$comment", "default", "examples", *CONTENT)  # they say nothing about documents


def levels(schema: Any) -> Iterator[list[Any]]:
    """The objects and lists of a schema: first itself, then those directly inside it, and so on."""
    level = [schema]
    while level:
        yield level
        inside = [part for value in level for part in (value.values() if isinstance(value, dict) else value)]
        level = [part for part in inside if isinstance(part, dict | list)]


def referred(root: dict[str, Any], ref: str) -> Any:
    """What `ref` names if it is a JSON pointer into the whole schema, `root`. None if it is not, or names nothing."""
    base, _, pointer = ref.partition("#")
    value: Any = root if base in ("", root.get("$id")) and pointer[:1] in ("", "/") else None
    try:
        for name in unquote(pointer).split("/")[1:]:
            value = value[int(name) if isinstance(value, list) else name.replace("~1", "/").replace("~0", "~")]
    except (LookupError, TypeError, ValueError):
        return None
    return value


def in_place(root: dict[str, Any]) -> tuple[dict[int, dict[str, Any]], dict[int, list[int]]]:
    """All objects in the schema `root` by their ids, and for each the ids of those that it has its own value checked by."""
    parts = {id(part): part for level in levels(root) for part in level if isinstance(part, dict)}
    graph: dict[int, list[int]] = {}
    for node, part in parts.items():
        inside = [each for keyword in ("allOf", "anyOf", "oneOf") for each in part.get(keyword) or ()]
        if isinstance(part.get("$ref"), str):
            inside.append(referred(root, part["$ref"]))
        graph[node] = [id(each) for each in inside if isinstance(each, dict)]
    return parts, graph


def check_references(root: dict[str, Any]) -> None:
    """ValueError when a `$ref` leads back to itself before it asks for anything."""
    parts, graph = in_place(root)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        ref = next(parts[node]["$ref"] for node in error.args[1] if "$ref" in parts[node])
        raise ValueError(f"$ref={ref!r}: leads back to itself before it asks for anything") from None


def without_property_names(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
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


def check_names(root: dict[str, Any]) -> None:
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


def check_least_properties(schema: dict[str, Any]) -> None:
    """The compiler counts a key again that comes twice. Only keys that the schema names come only once."""
    least, required = schema.get("minProperties", 0), schema.get("required", [])
    named = len(set(map(str, required))) if isinstance(required, list) else 0
    if isinstance(least, int | float) and least > max(1, named):
        raise ValueError(
            f"minProperties={least}: is only implemented up to 1 or up to the number of required properties, here {named}"
        )
