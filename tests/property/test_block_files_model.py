"""Files of two processes in one folder against a naive model: with and without faults, never other bytes."""

import errno
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from nanoinfer.cache.tiers.block_files import BlockFiles
from tests.helpers.kv_files import BLOCK, hit, kv_files, open_files, put, total

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


class SometimesFull(BlockFiles):
    is_full = False

    def _write_file(self, name: str, content: bytes) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "full")
        super()._write_file(name, content)


@contextmanager
def two_processes(**options: Any) -> Iterator[tuple[Path, list[Any], Callable[[int], None]]]:
    """A folder, the files of two processes in it, and a function that opens one of them anew."""
    with tempfile.TemporaryDirectory() as name:
        opened = [open_files(Path(name), kind=SometimesFull, **options) for _ in range(2)]

        def reopen(which: int) -> None:
            opened[which] = open_files(Path(name), kind=SometimesFull, **options)

        yield Path(name), opened, reopen


@given(st.lists(operations, max_size=20))
def test_two_processes_find_what_was_written_and_nothing_else(steps: list[Any]) -> None:
    model = Model()
    with two_processes() as (_, files, reopen):
        for name, which, namespace, tokens, first in steps:
            start = min(first * BLOCK, len(tokens) - BLOCK)
            if name == "put":
                assert put(files[which], tokens, start, namespace)
                model.put(namespace, tokens, start)
                assert hit(files[which], tokens, start, namespace) == len(tokens)
            elif name == "hit":
                assert hit(files[which], tokens, start, namespace) <= model.reach(namespace, tokens, start)
            elif name == "reopen":
                reopen(which)
            else:
                files[which].look()
                assert hit(files[which], tokens, start, namespace) == model.reach(namespace, tokens, start)


faults = st.lists(st.tuples(operations, st.sampled_from(["flip", "cut", "unlink", "swap", "full", ""])), max_size=14)


@given(faults, st.data())
def test_with_faults_and_a_bound_nothing_wrong_comes_back(steps: list[Any], data: st.DataObject) -> None:
    model = Model()
    with two_processes(max_bytes=3000) as (folder, files, reopen):
        for (name, which, namespace, tokens, first), fault in steps:
            start = min(first * BLOCK, len(tokens) - BLOCK)
            written = kv_files(folder)
            files[which].is_full = fault == "full"
            if fault not in ("", "full") and written:
                damage(fault, written, data)
            if name == "put":
                put(files[which], tokens, start, namespace)
                model.put(namespace, tokens, start)
            elif name == "reopen":
                reopen(which)
            elif name == "look":
                files[which].look()
            reached = hit(files[which], tokens, start, namespace)  # whatever comes back is right
            assert reached <= model.reach(namespace, tokens, start)
            assert total(folder) <= 3000


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
