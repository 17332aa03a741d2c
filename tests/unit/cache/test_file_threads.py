"""Disks that are slow or fail: nobody waits for them, a fault is a miss, and what was not written is said."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanoinfer.cache.storeys.files import FileStore
from tests.helpers.kv_files import (
    BLOCK,
    TOKEN_BYTES,
    fails,
    faulty,
    hit,
    kv_files,
    kv_of,
    look,
    open_store,
    put,
    unfinished_files,
)
from tests.helpers.waiting import HANG_S, until
from tests.helpers.waiting import Worker as Thread

TOKENS = list(range(12))


class Stall:
    """An operation that waits until it is let go on."""

    def __init__(self) -> None:
        self.is_waiting, self._go = threading.Event(), threading.Event()

    def __call__(self, *_: object) -> None:
        self.is_waiting.set()
        assert self._go.wait(HANG_S)

    def go(self) -> None:
        self._go.set()


def offer(store: FileStore, tokens: list[int], start: int = 0) -> bool:
    return store.offer(b"", tokens, start, kv_of(b"", tokens, start, len(tokens)))


@pytest.fixture
def before() -> dict[str, Callable[..., Any]]:
    return {}


def test_what_was_offered_is_written_in_order(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert all(offer(store, TOKENS[:end], end - 4) for end in (4, 8, 12))
    assert store.flush(HANG_S) == 0
    assert hit(store, TOKENS) == 12
    assert [file.stat().st_size for file in kv_files(tmp_path)] == sorted(
        (file.stat().st_size for file in kv_files(tmp_path)), reverse=True
    )


def test_a_disk_that_stalls_while_it_writes_keeps_nobody_waiting(
    tmp_path: Path, before: dict[str, Callable[..., Any]]
) -> None:
    stall = Stall()
    store = open_store(tmp_path, operations=faulty(before), queued_bytes=2 * BLOCK * TOKEN_BYTES)
    put(store, TOKENS[:4])
    before["write"] = stall
    assert offer(store, [7] * 4)
    assert stall.is_waiting.wait(HANG_S)
    assert offer(store, [8] * 4)
    assert not offer(store, [9] * 4)  # no room: at once
    assert hit(store, TOKENS[:4]) == 4  # reads go on
    assert store.stats().lost == 1
    assert store.flush(0) == 2 * BLOCK * TOKEN_BYTES
    stall.go()
    assert store.flush(HANG_S) == 0
    assert [hit(store, [i] * 4) for i in (7, 8, 9)] == [4, 4, 0]
    assert offer(store, [9] * 4)
    assert store.close(HANG_S) == 0
    assert hit(open_store(tmp_path), [9] * 4) == 4


def test_close_says_what_was_not_written(tmp_path: Path, before: dict[str, Callable[..., Any]]) -> None:
    stall = Stall()
    before["write"] = stall
    store = open_store(tmp_path, operations=faulty(before))
    offer(store, [7] * 4)
    assert stall.is_waiting.wait(HANG_S)
    offer(store, [8] * 8)
    assert store.close(0) == 3 * BLOCK * TOKEN_BYTES
    assert not offer(store, [9] * 4)
    stall.go()  # the thread that hung does no harm
    until(lambda: len(kv_files(tmp_path)) == 1)
    until(lambda: not store._writer.load - 2 * BLOCK * TOKEN_BYTES)
    assert hit(open_store(tmp_path), [7] * 4) == 4


def test_a_fetch_is_a_read_that_does_not_wait(tmp_path: Path, before: dict[str, Callable[..., Any]]) -> None:
    store, stall = open_store(tmp_path, operations=faulty(before)), Stall()
    put(store, TOKENS)
    before["read"] = stall
    fetch = store.fetch(b"", TOKENS, 0, 12)
    assert stall.is_waiting.wait(HANG_S)
    assert not fetch.is_done
    with pytest.raises(TimeoutError):
        fetch.result(0)
    stall.go()
    kv = fetch.result(HANG_S)
    assert kv is not None
    np.testing.assert_array_equal(kv, kv_of(b"", TOKENS, 0, 12))
    assert fetch.is_done


def test_a_stalled_disk_does_not_hold_up_opening_and_closing(
    tmp_path: Path, before: dict[str, Callable[..., Any]]
) -> None:
    stall = Stall()
    before["names"] = stall
    store = FileStore(tmp_path, None, {}, TOKEN_BYTES, BLOCK, operations=faulty(before), clock=lambda: 0.0)
    assert stall.is_waiting.wait(HANG_S)
    assert store.match(b"", TOKENS) == 0
    assert put(store, TOKENS)
    assert store.match(b"", TOKENS) == 12
    assert store.close() == 0
    stall.go()


def test_many_threads_use_one_store(tmp_path: Path) -> None:
    store = open_store(tmp_path, max_bytes=20_000)

    def use(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(40):
            tokens = rng.integers(0, 2, size=4 * int(rng.integers(1, 4))).tolist()
            if rng.random() < 0.5:
                assert put(store, tokens)
            else:
                hit(store, tokens)

    threads = [Thread(use, seed) for seed in range(4)]
    for thread in threads:
        thread.result()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_finds_and_writes_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, TOKENS)
    with store._blocks._lock, store._reader._changed, store._writer._changed:  # as another thread may hold them
        pid = os.fork()
        if pid == 0:
            found = [store.match(b"", TOKENS), store.read(b"", TOKENS, 0, 12), store.fetch(b"", TOKENS, 0, 4).result()]
            found += [offer(store, [5] * 4), put(store, [5] * 4), store.flush(), store.close(), store.stats().files]
            os._exit(found != [0, None, None, False, False, 0, 0, 0])
    assert os.waitpid(pid, 0)[1] == 0
    assert hit(store, TOKENS) == 12


def test_the_writer_keeps_its_pace_until_it_is_in_a_hurry(tmp_path: Path) -> None:
    store = open_store(tmp_path, bytes_per_second=1.0)  # minutes for each
    offer(store, [7] * 4)
    offer(store, [8] * 4)
    until(lambda: store.match(b"", [7] * 4) == 4)
    assert store.match(b"", [8] * 4) == 0
    assert store.flush(HANG_S) == 0
    assert hit(store, [8] * 4) == 4


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
    before.clear()
    look(store)
    assert hit(store, TOKENS) == 0  # it is not tried again and again
    assert put(store, TOKENS)
    assert hit(store, TOKENS) == 12  # but a new one is


@pytest.mark.parametrize("operation", ["create", "write", "rename"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
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
    assert os.strerror(number) in caplog.text
    assert (len(kv_files(tmp_path)), len(unfinished_files(tmp_path))) == (1, 0)
    assert hit(store, TOKENS) == 4
    assert store.stats().lost == 2
    before.clear()
    assert put(store, TOKENS)
    assert hit(store, TOKENS) == 12


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
