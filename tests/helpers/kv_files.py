"""Files of K/V for tests: bytes that follow from the tokens, written to a folder and read again."""

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from nanoinfer.cache.tiers.block_files import BlockFiles, BlockKV
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
    """Write the right K/V of `tokens` from `start` on; whether all of it is in files now."""
    names, blocks = names_of(tokens, namespace), list[BlockKV]()
    for number in range(start // BLOCK, len(names)):
        end = (number + 1) * BLOCK
        kv = kv_of(namespace, tokens, end - BLOCK, end)
        of = np.array(tokens[:end], np.int64)
        blocks.append(BlockKV(names[number], fields_of(namespace), of, kv, names[: number + 1][::-1]))
    files.write(blocks)
    return all(block.name in files.sizes for block in blocks)


def hit(files: BlockFiles, tokens: Sequence[int], start: int = 0, namespace: bytes = b"") -> int:
    """Up to which token K/V comes back, as DiskTier asks for it. Whatever comes back must be right."""
    names = names_of(tokens, namespace)
    for number in range(start // BLOCK, len(names)):
        end = (number + 1) * BLOCK
        known = names[number] in files.sizes
        kv = files.read(names[number], fields_of(namespace), np.array(tokens[:end])) if known else None
        if kv is None:
            files.touch(names[:number][::-1])
            return end - BLOCK
        np.testing.assert_array_equal(kv, kv_of(namespace, tokens, end - BLOCK, end))
    files.touch(names[::-1])
    return len(names) * BLOCK


def kv_files(folder: Path) -> list[Path]:
    """The finished files in a folder, those used longest ago first."""
    return sorted(folder.glob("*/*.safetensors"), key=lambda file: file.stat().st_mtime_ns)


def total(folder: Path) -> int:
    """The bytes of all files, also of unfinished ones."""
    return sum(file.stat().st_size for file in folder.glob("*/*"))
