"""Keys of blocks: a block's K/V depends on all tokens up to its end, and so does its key."""

from hashlib import blake2b

import numpy as np

KEY_BYTES = 16


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
