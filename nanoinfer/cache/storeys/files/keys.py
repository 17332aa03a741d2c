"""What K/V in files is found by: keys of blocks, namespaces as bytes, and the fingerprint of what it depends on besides.

A block's K/V depends on all tokens up to its end, and so does its key. What keeps equal tokens apart (an adapter's content,
an `extra_key`) must survive a process.
"""

import json
from collections.abc import Mapping
from hashlib import blake2b, sha256
from typing import Any

import numpy as np

KEY_BYTES = 16
MOST_BYTES = 4096
Field = str | int | float | bool | None


def block_keys(namespace: bytes, tokens: np.ndarray, block_size: int) -> list[bytes]:
    """A key for each whole block of `tokens` int32 [n]: the hash of the key before it and of the block's tokens.

    It only finds a file. The tokens in the file decide whether it is the right one.
    """
    return next_keys(first_key(namespace), tokens, block_size)


def first_key(namespace: bytes) -> bytes:
    """The key before that of a sequence's first block."""
    return blake2b(namespace, digest_size=KEY_BYTES).digest()


def next_keys(key: bytes, tokens: np.ndarray, block_size: int) -> list[bytes]:
    """As `block_keys`, for `tokens` behind the block with this `key`."""
    data, step, keys = tokens.tobytes(), 4 * block_size, list[bytes]()
    for start in range(0, len(data) - len(data) % step, step):
        key = blake2b(key + data[start : start + step], digest_size=KEY_BYTES).digest()
        keys.append(key)
    return keys


def as_tokens(token_ids: object) -> np.ndarray:
    """int32 [n], as they are in files. ValueError for what is no list of int32."""
    tokens = np.asarray(token_ids)
    if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
        raise ValueError(f"tokens: must be integers [n], got {tokens.dtype} {list(tokens.shape)}")
    if tokens.size and (int(tokens.min()) < -(2**31) or int(tokens.max()) >= 2**31):
        raise ValueError(f"tokens: {int(tokens.min())}..{int(tokens.max())}, must fit in 32 bits")
    return np.ascontiguousarray(tokens, dtype=np.int32)


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


def fingerprint(fields: Mapping[str, Field]) -> str:
    """64 hexadecimal digits: the same for equal names and values, others for anything else. Types are kept apart.

    ValueError naming a field that is no text, number, bool or None.
    """
    for name, value in fields.items():
        if type(value) not in (str, int, float, bool, type(None)):
            raise ValueError(f"fingerprint: {name}={value!r}: must be text, a number, a bool or None")
    text = json.dumps(sorted(fields.items()), separators=(",", ":"))  # floats with all their digits
    return sha256(text.encode()).hexdigest()
