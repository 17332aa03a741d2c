"""Files of K/V for tests: bytes that follow from the tokens, stores of a folder, and operations that fail when told to."""

import errno
import os
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from nanoinfer.cache.storeys.files import FileStore
from nanoinfer.cache.storeys.files.file_operations import FileOperations
from tests.helpers.waiting import HANG_S

BLOCK, TOKEN_BYTES = 4, 6


def kv_of(namespace: bytes, tokens: Sequence[int], start: int, end: int) -> np.ndarray:
    """The only right K/V of tokens `start..end`: a token's depends on the namespace and on all tokens up to it."""
    rows = [
        blake2b(repr((namespace, list(tokens[: i + 1]))).encode(), digest_size=6).digest() for i in range(start, end)
    ]
    return np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(-1, TOKEN_BYTES)


def open_store(folder: Path, **options: Any) -> FileStore:
    """A store that knows what is in the folder. Without a clock of its own, no time passes for it: it does not look again
    unless it is told to, and no thread that is late seems to be stalled."""
    settings: dict[str, Any] = {"max_bytes": None, "fingerprint_fields": {"weights": "a"}}
    settings |= {"token_bytes": TOKEN_BYTES, "block_size": BLOCK, "bytes_per_second": None}
    settings |= {"clock": lambda: 0.0, **options}
    store = FileStore(folder, **settings)
    look(store)
    return store


def look(store: FileStore) -> None:
    """Have a store look into its folder, and wait for it."""
    store.refresh().result(HANG_S)


def put(store: FileStore, tokens: Sequence[int], start: int = 0, namespace: bytes = b"") -> bool:
    """Write the right K/V of `tokens` from `start` on."""
    return store.write(namespace, tokens, start, kv_of(namespace, tokens, start, len(tokens)))


def hit(store: FileStore, tokens: Sequence[int], start: int = 0, namespace: bytes = b"") -> int:
    """Up to which token K/V comes back. Whatever comes back must be right, and as much as was promised by no more."""
    end = store.match(namespace, tokens, start)
    kv = store.read(namespace, tokens, start, end)
    if kv is None:
        return start
    assert len(kv) <= end - start
    assert len(kv) % store.block_size == 0
    np.testing.assert_array_equal(kv, kv_of(namespace, tokens, start, start + len(kv)))
    return start + len(kv)


def kv_files(folder: Path) -> list[Path]:
    """The finished files in a folder, those used longest ago first."""
    return sorted(folder.glob("*-*.safetensors"), key=lambda file: file.stat().st_mtime_ns)


def unfinished_files(folder: Path) -> list[Path]:
    return list(folder.glob("unfinished-*"))


class FaultyOperations(FileOperations):
    """Calls `before[operation](*arguments)`, if there is such a function, before each operation. It may raise, wait, or
    return what the operation then returns instead; None: the operation is done as usual."""

    def __init__(self, folder: int, before: dict[str, Callable[..., Any]]):
        super().__init__(folder)
        self.before = before

    def __getattribute__(self, name: str) -> Any:
        operation = super().__getattribute__(name)
        before = None if name.startswith("_") or name == "before" else self.before.get(name)
        if before is None:
            return operation

        def call(*args: Any) -> Any:
            instead = before(*args)
            return operation(*args) if instead is None else instead

        return call


def faulty(before: dict[str, Callable[..., Any]]) -> Callable[[int], FaultyOperations]:
    """For `operations=` of a store; `before` may be changed later."""
    return lambda folder: FaultyOperations(folder, before)


def fails(number: int = errno.EIO) -> Callable[..., Any]:
    """An operation that the system refuses."""

    def fail(*args: Any) -> None:
        raise OSError(number, os.strerror(number))

    return fail
