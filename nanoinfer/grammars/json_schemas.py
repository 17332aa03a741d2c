"""Checks a JSON schema before it is compiled: what the compiler would let through, or would not survive, is refused."""

import json
from typing import Any

MAX_DEPTH = 64  # of a schema: objects and lists inside each other


def check_schema(text: str) -> None:
    """ValueError with the reason when `text` is not a JSON schema that can be compiled exactly."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from error
    if not isinstance(schema, dict | bool):
        raise ValueError(f"must be a JSON object, is {type(schema).__name__}")
    _check(schema, 1)


def _check(value: Any, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(f"is more than {MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        if "x-guidance" in value:
            raise ValueError("x-guidance: settings of the compiler are not for schemas")
        for each in value.values():
            _check(each, depth + 1)
    elif isinstance(value, list):
        for each in value:
            _check(each, depth + 1)
