"""How large a JSON schema may be: compiling takes time that grows with the square of some numbers, and a long chain of
references overflows the compiler's stack, which would end the process."""

from collections.abc import Iterator
from typing import Any

MAX_PROPERTIES = 1000  # names in `properties` and `required`, in the whole schema
MAX_PATTERNS = 100  # in `patternProperties`: each is compared with each
MAX_VALUES = 5000  # in `enum`, in the whole schema
MAX_REFERRED = 1500  # different targets of `$ref`, times the depth of the schema: as deep the compiler may have to go
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
        inside = [each for value in level for each in (value.values() if isinstance(value, dict) else value)]
        level = [each for each in inside if isinstance(each, dict | list)]


def check_sizes(schema: dict[str, Any], depth: int) -> None:
    """ValueError naming what the schema has too many of. `depth`: how many objects and lists are inside each other."""
    counts = dict.fromkeys(COUNTED, 0)
    targets: set[str] = set()
    for value in (each for level in levels(schema) for each in level if isinstance(each, dict)):
        for keyword in COUNTED:
            if isinstance(value.get(keyword), dict | list):
                counts[keyword] += len(value[keyword])
        if isinstance(target := value.get("$ref"), str):
            targets.add(target)
    for keyword, (most, what) in COUNTED.items():
        if counts[keyword] > most:
            raise ValueError(f"has {counts[keyword]} {what}: must not exceed {most}")
    if len(targets) * depth > MAX_REFERRED:
        raise ValueError(
            f"has {len(targets)} different targets of $ref, and objects and lists {depth} levels inside each other: the "
            f"product must not exceed {MAX_REFERRED}"
        )
