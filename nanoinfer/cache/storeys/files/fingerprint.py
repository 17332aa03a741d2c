"""Fingerprint: what must be the same so that K/V from a file has the bits that it would have had."""

import json
from collections.abc import Mapping
from hashlib import sha256

Field = str | int | float | bool | None


def fingerprint(fields: Mapping[str, Field]) -> str:
    """64 hexadecimal digits: the same for equal names and values, others for anything else. Types are kept apart.

    ValueError naming a field that is no text, number, bool or None.
    """
    for name, value in fields.items():
        if type(value) not in (str, int, float, bool, type(None)):
            raise ValueError(f"fingerprint: {name}={value!r}: must be text, a number, a bool or None")
    text = json.dumps(sorted(fields.items()), separators=(",", ":"))  # floats with all their digits
    return sha256(text.encode()).hexdigest()
