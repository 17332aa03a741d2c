"""Namespaces as bytes: what keeps equal tokens apart (an adapter's content, an `extra_key`) must survive a process."""

import json
from typing import Any

MOST_BYTES = 4096


def namespace_bytes(namespace: object) -> bytes | None:
    """The same bytes for equal values, in every process, and others for different ones; None if there are no such bytes.

    `namespace` is None, a bool, an int, a str, bytes, or a tuple of these. Types are kept apart: True is not 1. Other
    objects may be equal in this process without anything that another process could compare, so they have none, nor have
    those for which it would be more than `MOST_BYTES`.
    """
    try:
        # Not in ASCII: two lone surrogates would become the same text as the one character that they could mean.
        text = json.dumps(_plain(namespace), separators=(",", ":"), ensure_ascii=False).encode(errors="surrogatepass")
    except (TypeError, ValueError, RecursionError):
        return None
    return text if len(text) <= MOST_BYTES else None


def plain_namespace(data: bytes) -> object:
    """The value of which `namespace_bytes` made these bytes; None, too, for other bytes."""
    try:
        return _value(json.loads(data.decode(errors="surrogatepass")))
    except (LookupError, TypeError, ValueError, RecursionError):
        return None


def _value(plain: Any) -> object:
    if isinstance(plain, dict):
        return bytes.fromhex(plain["bytes"])
    return tuple(map(_value, plain)) if isinstance(plain, list) else plain


def _plain(value: object) -> Any:
    kind = type(value)  # not isinstance: a subclass may compare in another way
    if value is None or kind in (bool, int, str):
        return value
    if isinstance(value, bytes) and kind is bytes:
        return {"bytes": value.hex()}
    if isinstance(value, tuple) and kind is tuple:
        return [_plain(each) for each in value]
    raise TypeError(f"namespace: {kind.__name__} is no plain type")
