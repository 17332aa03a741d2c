"""Files of K/V for tests: bytes that follow from the tokens, written to a folder and read again."""

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from nanoinfer.cache.tiers.block_files import BlockFiles, Run
from nanoinfer.cache.tiers.block_index import block_digests

BLOCK, TOKEN_BYTES = 4, 6


def kv_of(namespace: bytes, tokens: Sequence[int], start: int, end: int) -> np.ndarray:
    """The only right K/V of tokens `start..end`: a token's depends on the namespace and on all tokens up to it."""
    rows = [
        blake2b(repr((namespace, list(tokens[: i + 1]))).encode(), digest_size=6).digest() for i in range(start, end)
    ]
    return np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(-1, TOKEN_BYTES)


def open_files(folder: Path, fingerprint: str = "a" * 64, kind: type[BlockFiles] = BlockFiles, **options: Any) -> Any:
    """The files of a folder, which has been looked into."""
    files = kind(folder, fingerprint, BLOCK, TOKEN_BYTES, **options)
    files.look()
    return files


def names_of(tokens: Sequence[int], namespace: bytes = b"") -> list[str]:
    return [digest.hex() for digest in block_digests(namespace, np.array(tokens, np.int64), BLOCK)]


def fields_of(namespace: bytes) -> dict[str, str]:
    return {"namespace": namespace.hex(), "router_namespace": "5"}


def put(files: BlockFiles, tokens: Sequence[int], start: int = 0, namespace: bytes = b"") -> bool:
    """Write the right K/V of `tokens` from `start` on that is not in files yet; whether all of it is now."""
    names = names_of(tokens, namespace)
    missing = [i for i in range(start // BLOCK, len(names)) if names[i] not in files.file_of]
    first, of = min(missing, default=start // BLOCK), np.array(tokens[: len(names) * BLOCK], np.int64)
    files.write(Run(names, first, fields_of(namespace), of, kv_of(namespace, tokens, first * BLOCK, len(of))))
    return all(name in files.file_of for name in names[first:])


def hit(files: BlockFiles, tokens: Sequence[int], start: int = 0, namespace: bytes = b"") -> int:
    """Up to which token K/V comes back, as DiskTier asks for it. Whatever comes back must be right."""
    names, of, number = names_of(tokens, namespace), np.array(tokens), start // BLOCK
    while number < len(names):
        kv = files.read(names, number, fields_of(namespace), of)
        if kv is None:
            break
        at = number * BLOCK
        np.testing.assert_array_equal(kv, kv_of(namespace, tokens, at, at + len(kv)))
        number += len(kv) // BLOCK
    files.touch(names[:number][::-1])
    return number * BLOCK


def kv_files(folder: Path) -> list[Path]:
    """The finished files in a folder, those used longest ago first."""
    return sorted(folder.glob("*/*.safetensors"), key=lambda file: file.stat().st_mtime_ns)


def total(folder: Path) -> int:
    """The bytes of all files, also of unfinished ones."""
    return sum(file.stat().st_size for file in folder.glob("*/*"))
