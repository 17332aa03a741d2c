"""References of JSON schemas. The compiler would find out too late, when the output is written, that one has no content."""

from graphlib import CycleError, TopologicalSorter
from typing import Any
from urllib.parse import unquote

from nanoinfer.grammars.json_sizes import levels


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
