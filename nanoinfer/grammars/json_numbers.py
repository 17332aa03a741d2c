"""Numbers in a JSON schema that the compiler would write wrongly, let others through at, or fail at.

Where a bound is a whole number that is excluded, and the other bound is less than 1 away, llguidance 1.9 writes the
excluded number itself: `0` for more than 0 and at most 0.5, `-0` for at least -0.5 and less than 0. The other bound may
come from another part of the schema (allOf, $ref). It has no such fault with fractions, so a whole number that is excluded
becomes a fraction just beyond it.

It knows bounds as doubles, reads only 15 digits of them exactly, and fails at those beyond LARGEST. So a bound is moved
to where it is exact, always inwards. Numbers between the two cannot be written then, and nobody misses them.
"""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from typing import Any

from nanoinfer.grammars.json_names import levels

BEYOND = 1e-9  # or the distance to the next number that a double can hold, if that is larger
LARGEST = 2**63 - 1024  # a double, and the largest bound
# A number that all `multipleOf` divide, zeros at its end aside: the compiler has a state for each rest.
MAX_MULTIPLE = 20_000
# In which direction numbers are allowed.
SIGNS = {"minimum": 1, "exclusiveMinimum": 1, "maximum": -1, "exclusiveMaximum": -1}


def compiled_bounds(schema: dict[str, Any]) -> dict[str, float]:
    """What to compile in place of the bounds of `schema`. ValueError for one that no number of 19 digits is within."""
    bounds: dict[str, float] = {}
    for keyword, sign in SIGNS.items():
        value = schema.get(keyword)
        if not isinstance(value, int | float) or isinstance(value, bool):
            continue
        if value * sign > LARGEST:
            raise ValueError(f"{keyword}={value}: must be {'at most' if sign > 0 else 'at least'} {sign * LARGEST}")
        value = max(-(2**64), min(value, 2**64))  # what is beyond is far enough
        is_excluded = keyword.startswith("exclusive")
        if value != int(value):
            rounding = ROUND_CEILING if sign > 0 else ROUND_FLOOR
            bounds[keyword] = float(Context(15, rounding).create_decimal(repr(value)))
        elif abs(value) >= 2**52:
            bounds[keyword] = _exact(int(value), sign, is_excluded)
        elif is_excluded and schema.get("type") != "integer":
            bounds[keyword] = value + sign * max(BEYOND, math.ulp(value))
    return bounds


def _exact(value: int, sign: int, is_excluded: bool) -> int:
    """The next whole number that is a double, and that is also allowed as the compiler writes it, with few digits."""
    number = float(max(-LARGEST, min(value, LARGEST)))
    while any(sign * (each - value) < is_excluded for each in (int(number), int(Decimal(repr(number))))):
        number = math.nextafter(number, sign * math.inf)
    return int(number)


def check_multiples(schema: dict[str, Any]) -> None:
    """The compiler takes seconds and hundreds of megabytes for large ones, and multiplies those that may meet."""
    found = (part.get("multipleOf") for level in levels(schema) for part in level if isinstance(part, dict))
    multiples = {each for each in found if isinstance(each, int | float) and math.isfinite(each) and each > 0}
    common = math.lcm(*(int(str(Fraction(str(multiple)).numerator).rstrip("0")) for multiple in multiples))
    if common > MAX_MULTIPLE:
        raise ValueError(f"multipleOf={', '.join(map(str, sorted(multiples)))}: their least common multiple, zeros at its "
                         f"end aside, is {common}: must not exceed {MAX_MULTIPLE}")  # fmt: skip


def is_exact(number: float) -> bool:
    """Whether the compiler writes `number` as it is."""
    if isinstance(number, int) and abs(number) < 2**63:
        return int(float(number)) == number
    return len(repr(number).partition("e")[0].replace(".", "").strip("-0")) <= 15
