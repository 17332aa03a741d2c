"""Two stores in one folder against a naive model: a set of prefixes. With and without faults, never other bytes."""

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from nanoinfer.cache.storeys.files import FileStore
from tests.helpers.kv_files import BLOCK, faulty, hit, kv_files, look, open_store, put

# Blocks of which few are possible, so that sequences share beginnings.
sequences = st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=5).map(
    lambda blocks: [token for block in blocks for token in (block, 0, 5, 5)]
)
namespaces = st.sampled_from([b"", b"a"])
operations = st.tuples(
    st.sampled_from(["put", "put", "hit", "look", "reopen"]),
    st.integers(0, 1),
    namespaces,
    sequences,
    st.integers(0, 4),
)


class Model:
    """The prefixes of whole blocks that were written."""

    def __init__(self) -> None:
        self.prefixes = set[tuple[bytes, tuple[int, ...]]]()

    def put(self, namespace: bytes, tokens: list[int], start: int) -> None:
        self.prefixes |= {(namespace, tuple(tokens[:end])) for end in range(start + BLOCK, len(tokens) + 1, BLOCK)}

    def reach(self, namespace: bytes, tokens: list[int], start: int) -> int:
        while start < len(tokens) and (namespace, tuple(tokens[: start + BLOCK])) in self.prefixes:
            start += BLOCK
        return start


@contextmanager
def two_stores(**options: Any) -> Iterator[tuple[Path, list[FileStore], Callable[[int], None]]]:
    """A folder, two stores of it, and a function that opens one of them anew."""
    with tempfile.TemporaryDirectory() as name:
        stores = [open_store(Path(name), **options) for _ in range(2)]

        def reopen(which: int) -> None:
            stores[which].close()
            stores[which] = open_store(Path(name), **options)

        yield Path(name), stores, reopen
        for store in stores:
            store.close()


@given(st.lists(operations, max_size=20), st.sampled_from([1, 60, 10**6]))
def test_two_stores_find_what_was_written_and_nothing_else(steps: list[Any], file_bytes: int) -> None:
    model = Model()
    with two_stores(file_bytes=file_bytes) as (_, stores, reopen):
        for name, which, namespace, tokens, first in steps:
            start = min(first * BLOCK, len(tokens) - BLOCK)
            if name == "put":
                assert put(stores[which], tokens, start, namespace)
                model.put(namespace, tokens, start)
                assert stores[which].match(namespace, tokens, start) == len(tokens)
            elif name == "hit":
                assert hit(stores[which], tokens, start, namespace) <= model.reach(namespace, tokens, start)
            elif name == "reopen":
                reopen(which)
            else:
                look(stores[which])
                assert hit(stores[which], tokens, start, namespace) == model.reach(namespace, tokens, start)


faults = st.lists(
    st.tuples(operations, st.sampled_from(["flip", "cut", "unlink", "swap", "ENOSPC", "short", ""])), max_size=14
)


@given(faults, st.data())
def test_with_faults_and_a_bound_nothing_wrong_comes_back(steps: list[Any], data: st.DataObject) -> None:
    model, before = Model(), dict[str, Callable[..., Any]]()
    with two_stores(file_bytes=60, operations=faulty(before), max_bytes=3000) as (folder, stores, reopen):
        for (name, which, namespace, tokens, first), fault in steps:
            before.clear()
            start = min(first * BLOCK, len(tokens) - BLOCK)
            files = kv_files(folder)
            if fault == "ENOSPC":
                before["write"] = lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full"))
            elif fault == "short":
                before["read"] = lambda file, into, offset: os.preadv(file, [into[:7]], offset)
            elif fault and files:
                damage(fault, files, data)
            if name == "put":
                put(stores[which], tokens, start, namespace)
                model.put(namespace, tokens, start)
            elif name == "reopen":
                reopen(which)
            elif name == "look":
                look(stores[which])
            reached = hit(stores[which], tokens, start, namespace)  # whatever comes back is right
            assert reached <= model.reach(namespace, tokens, start)
            assert sum(file.stat().st_size for file in folder.iterdir()) <= 3000


def damage(fault: str, files: list[Path], data: st.DataObject) -> None:
    file = data.draw(st.sampled_from(files))
    content = bytearray(file.read_bytes())
    at = data.draw(st.integers(0, max(0, len(content) - 1)))
    if fault == "unlink":
        file.unlink()
    elif fault == "swap":
        file.write_bytes(data.draw(st.sampled_from(files)).read_bytes()[: len(content)])
    elif content:
        content[at] ^= data.draw(st.integers(1, 255))
        file.write_bytes(content if fault == "flip" else content[:at])
