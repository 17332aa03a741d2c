"""Bounds of numbers that the compiler would let numbers through at.

Where a bound is a whole number that is excluded, and the other bound is less than 1 away, llguidance 1.9 writes the
excluded number itself: `0` for more than 0 and at most 0.5, `-0` for at least -0.5 and less than 0. The other bound may
come from another part of the schema (allOf, $ref). It has no such fault with fractions, so a whole number that is excluded
becomes a fraction just beyond it. Numbers between the two cannot be written then, and nobody misses them.
"""

import math
from typing import Any

BEYOND = 1e-9  # or the distance to the next number that a double can hold, if that is larger
SIGNS = {"exclusiveMinimum": 1, "exclusiveMaximum": -1}  # in which direction numbers are allowed


def compiled_bounds(schema: dict[str, Any]) -> dict[str, float]:
    """What to compile in place of the excluded bounds of `schema`. Those of a schema for integers are right as they are."""
    bounds = {keyword: schema[keyword] for keyword in SIGNS if keyword in schema}
    if schema.get("type") == "integer":
        return {}
    return {keyword: _beyond(value, SIGNS[keyword]) for keyword, value in bounds.items() if _is_whole(value)}


def _is_whole(value: Any) -> bool:
    """Whether it is a whole number, small enough that there are fractions near it."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) < 2**52 and value == int(value)


def _beyond(value: float, sign: int) -> float:
    return value + sign * max(BEYOND, math.ulp(value))
