"""K/V as a safetensors file: what is in one, and how it is checked. Nothing in such a file is code.

tokens    int32 [end]            all of them up to the K/V's end, because K/V depends on all of them
kv        uint8 [k, token_bytes] of the last k of these tokens
metadata  fields that the writer chose, and the SHA-256 of all that the file says
"""

import json
from collections.abc import Mapping
from hashlib import sha256

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save


def pack(fields: Mapping[str, str], tokens: np.ndarray, kv: np.ndarray) -> bytes:
    """The bytes. `fields`: what K/V depends on beside `tokens` (integers `[end]`); `kv`: uint8 `[k, token_bytes]`."""
    arrays = {"tokens": tokens.astype(np.int32), "kv": np.ascontiguousarray(kv)}
    return save(arrays, {**fields, "sha256": _digest(fields, arrays)})


def unpack(data: bytes) -> tuple[dict[str, str], np.ndarray, np.ndarray]:
    """What `pack` was given: fields, tokens int64, K/V. ValueError for bytes that are torn, damaged, or something else."""
    try:
        fields = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        arrays, digest = load(data), fields.pop("sha256")
        if digest == _digest(fields, arrays):
            return fields, arrays["tokens"].astype(np.int64), arrays["kv"]
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("is torn or damaged") from error
    raise ValueError("has another checksum than it should")


def _digest(fields: Mapping[str, str], arrays: Mapping[str, np.ndarray]) -> str:
    shapes = {name: [str(array.dtype), array.shape] for name, array in arrays.items()}
    digest = sha256(json.dumps([fields, shapes], sort_keys=True).encode())
    for name in ("tokens", "kv"):
        digest.update(arrays[name].data)
    return digest.hexdigest()
