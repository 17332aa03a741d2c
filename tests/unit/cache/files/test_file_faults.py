"""Disks that fail: each fault is a miss and a line in the log, never an error and never other bytes."""

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nanoinfer.cache.storeys.files import FileStore
from tests.helpers.kv_files import fails, faulty, hit, kv_files, look, open_store, put, unfinished_files

TOKENS = list(range(12))


@pytest.fixture
def before() -> dict[str, Callable[..., Any]]:
    """What happens before the store's operations."""
    return {}


@pytest.fixture
def store(tmp_path: Path, before: dict[str, Callable[..., Any]]) -> FileStore:
    return open_store(tmp_path, operations=faulty(before))


def half(file: int, into: memoryview, offset: int) -> int:
    """A read that brings less than it was asked for."""
    return os.preadv(file, [into[: max(1, len(into) // 2)]], offset)


def test_reads_and_writes_in_small_pieces_are_as_good(store: FileStore, before: dict[str, Callable[..., Any]]) -> None:
    before["read"] = half
    before["write"] = lambda file, data: os.write(file, data[0][:7])
    assert put(store, TOKENS)
    assert hit(store, TOKENS) == 12


@pytest.mark.parametrize("operation", ["open", "status_of", "read"])
def test_a_read_that_fails_is_a_miss(
    store: FileStore, before: dict[str, Callable[..., Any]], operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    put(store, TOKENS)
    before[operation] = fails()
    assert hit(store, TOKENS) == 0
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "is not used: Input/output error" in caplog.text
    before.clear()
    look(store)
    assert hit(store, TOKENS) == 0  # it is not tried again and again
    assert put(store, TOKENS)
    assert hit(store, TOKENS) == 12  # but a new one is


def test_a_file_that_ends_while_it_is_read(store: FileStore, before: dict[str, Callable[..., Any]]) -> None:
    put(store, TOKENS)
    before["read"] = lambda file, into, offset: half(file, into, offset) if offset < 300 else 0
    assert hit(store, TOKENS) == 0


def test_a_run_ends_where_a_file_fails(tmp_path: Path) -> None:
    store = open_store(tmp_path, file_bytes=4 * 6)
    put(store, TOKENS)
    second = sorted(kv_files(tmp_path), key=lambda file: file.stat().st_size)[1]
    second.write_bytes(b"x" * second.stat().st_size)
    assert hit(store, TOKENS) == 4
    assert hit(store, TOKENS, start=8) == 12


@pytest.mark.parametrize("operation", ["create", "write", "rename", "names"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_full_or_read_only_disk_leaves_no_trace(
    tmp_path: Path,
    before: dict[str, Callable[..., Any]],
    operation: str,
    number: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = open_store(tmp_path, operations=faulty(before), max_bytes=10**6)
    put(store, TOKENS[:4])
    before[operation] = fails(number)
    assert [put(store, TOKENS), put(store, [9] * 8)] == [False, False]
    assert caplog.text.count(os.strerror(number)) == 1  # not a line for each
    assert (len(kv_files(tmp_path)), len(unfinished_files(tmp_path))) == (1, 0)
    assert hit(store, TOKENS) == 4
    assert store.stats().lost == 2
    before.clear()
    assert put(store, TOKENS)
    assert hit(store, TOKENS) == 12
    before[operation] = fails(number)
    put(store, [9] * 8)
    assert caplog.text.count(os.strerror(number)) == 2


def test_a_disk_that_is_full_in_the_middle_of_a_file(tmp_path: Path, before: dict[str, Callable[..., Any]]) -> None:
    store = open_store(tmp_path, operations=faulty(before))
    written: list[int] = []

    def write(file: int, data: list[memoryview]) -> int:
        if written:
            raise OSError(errno.ENOSPC, "full")
        written.append(os.write(file, data[0][:9]))
        return written[0]

    before["write"] = write
    assert not put(store, TOKENS)
    assert list(tmp_path.iterdir()) == []
    before["write"] = lambda file, data: 0
    assert not put(store, TOKENS)


def test_a_read_only_disk_can_be_read(tmp_path: Path, before: dict[str, Callable[..., Any]]) -> None:
    put(open_store(tmp_path), TOKENS)
    before.update({name: fails(errno.EROFS) for name in ("create", "rename", "remove", "touch")})
    store = open_store(tmp_path, operations=faulty(before))
    assert hit(store, TOKENS) == 12
    (file,) = kv_files(tmp_path)
    file.write_bytes(b"x" * file.stat().st_size)
    assert hit(store, TOKENS) == 0  # damaged, and cannot be removed
    look(store)
    assert store.stats().misses == 1  # but is known to be


def test_a_folder_that_cannot_be_looked_into(
    tmp_path: Path, before: dict[str, Callable[..., Any]], caplog: pytest.LogCaptureFixture
) -> None:
    put(open_store(tmp_path), TOKENS)
    before["names"] = fails()
    store = open_store(tmp_path, operations=faulty(before))
    look(store)
    assert hit(store, TOKENS) == 0
    assert len(caplog.records) == 1
    before.clear()
    look(store)
    assert hit(store, TOKENS) == 12


@pytest.mark.parametrize("operation", ["open", "status_of", "read"])
def test_a_file_that_vanishes_meanwhile(
    tmp_path: Path, before: dict[str, Callable[..., Any]], operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path, operations=faulty(before))
    put(store, TOKENS)

    def vanish(*_: object) -> None:
        for file in kv_files(tmp_path):
            file.unlink()

    before[operation] = vanish
    with caplog.at_level(logging.INFO):
        reached = hit(store, TOKENS)
    assert (reached, len(caplog.records)) == ((0, 1) if operation == "open" else (12, 0))  # an open file stays
    before.clear()
    assert put(store, TOKENS) == (operation == "open") or store.match(b"", TOKENS) == 12


def test_a_file_that_vanishes_between_the_list_and_the_look(
    tmp_path: Path, before: dict[str, Callable[..., Any]]
) -> None:
    put(open_store(tmp_path), TOKENS)
    before["status"] = lambda name: (tmp_path / name).unlink()
    store = open_store(tmp_path, operations=faulty(before))
    assert hit(store, TOKENS) == 0


def test_what_a_killed_process_left_is_removed(tmp_path: Path, before: dict[str, Callable[..., Any]]) -> None:
    left = tmp_path / f"unfinished-{'a' * 32}"
    left.write_bytes(b"x" * 1000)
    (tmp_path / "unfinished-notes.txt").write_text("somebody else's")
    store = open_store(tmp_path, operations=faulty(before))
    assert not left.exists()
    assert (tmp_path / "unfinished-notes.txt").exists()

    def look_meanwhile(*_: object) -> None:
        assert len(unfinished_files(tmp_path)) == 2
        look(open_store(tmp_path))

    before["rename"] = look_meanwhile
    assert put(store, TOKENS)  # another process does not take a file away that is being written
    assert hit(store, TOKENS) == 12
    assert len(unfinished_files(tmp_path)) == 1


def test_a_file_that_is_taken_away_while_it_is_written(tmp_path: Path, before: dict[str, Callable[..., Any]]) -> None:
    store = open_store(tmp_path, operations=faulty(before))
    before["rename"] = lambda *_: unfinished_files(tmp_path)[0].unlink()
    assert not put(store, TOKENS)
    assert list(tmp_path.iterdir()) == []


def test_the_folder_itself_is_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(tmp_path / "cache")
    put(store, TOKENS)
    for file in kv_files(tmp_path / "cache"):
        file.unlink()
    (tmp_path / "cache").rmdir()
    assert hit(store, TOKENS) == 0
    assert not put(store, TOKENS)
    look(store)
    assert hit(store, TOKENS) == 0
    assert store.close() == 0
