"""How large a JSON schema may be: compiling takes time that grows with the square of some numbers."""

from collections.abc import Iterator
from typing import Any

MAX_PROPERTIES = 1000  # names in `properties` and `required`, in the whole schema
MAX_PATTERNS = 100  # in `patternProperties`: each is compared with each
MAX_VALUES = 5000  # in `enum`, in the whole schema
COUNTED = {
    "properties": (MAX_PROPERTIES, "properties"),
    "required": (MAX_PROPERTIES, "required properties"),
    "patternProperties": (MAX_PATTERNS, "patternProperties"),
    "enum": (MAX_VALUES, "values in enum"),
}


def levels(schema: Any) -> Iterator[list[Any]]:
    """The objects and lists of a schema: first itself, then those directly inside it, and so on."""
    level = [schema]
    while level:
        yield level
        inside = [part for value in level for part in (value.values() if isinstance(value, dict) else value)]
        level = [part for part in inside if isinstance(part, dict | list)]


def check_sizes(schema: Any) -> None:
    """ValueError naming what the schema has too many of."""
    counts = dict.fromkeys(COUNTED, 0)
    for value in (part for level in levels(schema) for part in level if isinstance(part, dict)):
        for keyword in COUNTED:
            if isinstance(value.get(keyword), dict | list):
                counts[keyword] += len(value[keyword])
    for keyword, (most, what) in COUNTED.items():
        if counts[keyword] > most:
            raise ValueError(f"has {counts[keyword]} {what}: must not exceed {most}")
