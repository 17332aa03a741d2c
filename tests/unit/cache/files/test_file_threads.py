"""Reading and writing beside the engine: nobody waits for a disk, and what was not written is said."""

import gc
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanoinfer.cache.storeys.files import FileStore
from nanoinfer.cache.storeys.files.worker import Pace, Worker
from tests.helpers.kv_files import (
    BLOCK,
    TOKEN_BYTES,
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


def ends_of(store: FileStore) -> list[int]:
    """Gets a 1 whenever the store's folder is closed."""
    ends, end = list[int](), store._operations.end
    store._operations.end = lambda: (end(), ends.append(1))  # type: ignore[method-assign,assignment]
    return ends


def threads_of(store: FileStore) -> list[threading.Thread]:
    return [thread for thread in (store._reader._thread, store._writer._thread) if thread is not None]


def join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(HANG_S)
        assert not thread.is_alive()


@pytest.fixture
def before() -> dict[str, Callable[..., Any]]:
    return {}


def test_what_was_offered_is_written_in_order(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert all(offer(store, TOKENS[:end], end - 4) for end in (4, 8, 12))
    assert store.flush(HANG_S) == 0
    assert hit(store, TOKENS) == 12
    assert store.stats().queued_bytes == 0
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


def test_close_says_what_was_not_written(
    tmp_path: Path, before: dict[str, Callable[..., Any]], caplog: pytest.LogCaptureFixture
) -> None:
    stall = Stall()
    before["write"] = stall
    store = open_store(tmp_path, operations=faulty(before))
    offer(store, [7] * 4)
    assert stall.is_waiting.wait(HANG_S)
    offer(store, [8] * 8)
    assert store.close(0) == 3 * BLOCK * TOKEN_BYTES
    assert "closed when 72 bytes were not written yet" in caplog.text
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
    done = threading.Event()
    fetch.when_done(done.set)
    assert stall.is_waiting.wait(HANG_S)
    assert not fetch.is_done
    assert not done.is_set()
    with pytest.raises(TimeoutError):
        fetch.result(0)
    stall.go()
    kv = fetch.result(HANG_S)
    assert kv is not None
    np.testing.assert_array_equal(kv, kv_of(b"", TOKENS, 0, 12))
    assert fetch.is_done
    assert done.wait(HANG_S)


def test_a_stalled_read_can_be_given_up(tmp_path: Path, before: dict[str, Callable[..., Any]]) -> None:
    now, stall = [0.0], Stall()
    store = open_store(tmp_path, operations=faulty(before), clock=lambda: now[0])
    put(store, TOKENS)
    before["read"] = stall
    first, second = store.fetch(b"", TOKENS, 0, 12), store.fetch(b"", TOKENS, 0, 4)
    assert stall.is_waiting.wait(HANG_S)
    for fetch in (first, second):
        fetch.give_up()
    assert second.result(0) is None  # had not begun
    assert store.match(b"", TOKENS) == 12
    now[0] += 10
    assert store.match(b"", TOKENS) == 0  # who would wait for it?
    assert put(store, [9] * 4)
    stall.go()
    assert first.result(HANG_S) is not None
    before.clear()
    look(store)
    assert hit(store, TOKENS) == 12


def test_a_fetch_that_never_begins_before_the_store_is_closed(
    tmp_path: Path, before: dict[str, Callable[..., Any]]
) -> None:
    store, stall = open_store(tmp_path, operations=faulty(before)), Stall()
    put(store, TOKENS)
    before["read"] = stall
    first, second, given_up = (store.fetch(b"", TOKENS, 0, 12) for _ in range(3))
    looking, done = store.refresh(), threading.Event()
    second.when_done(done.set)
    assert stall.is_waiting.wait(HANG_S)
    given_up.give_up()
    assert store.close() == 0
    assert (second.result(0), given_up.result(0)) == (None, None)
    assert done.is_set()
    assert looking.cancelled()
    stall.go()
    assert first.result(HANG_S) is not None  # whoever has waited so long gets it


def test_an_error_that_nobody_thought_of_is_a_miss(
    tmp_path: Path, before: dict[str, Callable[..., Any]], caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path, operations=faulty(before))
    put(store, TOKENS)

    def fail(*_: object) -> None:
        raise MemoryError("no room")

    before["read"] = before["write"] = fail
    assert store.fetch(b"", TOKENS, 0, 12).result(HANG_S) is None
    assert offer(store, [7] * 4)
    assert store.flush(HANG_S) == 0
    assert caplog.text.count("MemoryError: no room") == 2
    before.clear()
    assert unfinished_files(tmp_path) == []
    assert hit(store, TOKENS) == 12


def test_a_fetch_of_what_is_not_there(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert store.fetch(b"", TOKENS, 0, 12).result(HANG_S) is None
    put(store, TOKENS[:8])
    kv = store.fetch(b"", TOKENS, 4, 12).result(HANG_S)
    assert kv is not None
    np.testing.assert_array_equal(kv, kv_of(b"", TOKENS, 4, 8))


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


def test_a_store_that_nobody_refers_to_ends_its_threads(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    offer(store, TOKENS)
    store.flush(HANG_S)
    threads, ends, gone = threads_of(store), ends_of(store), weakref.ref(store)
    del store
    until(lambda: gc.collect() >= 0 and gone() is None)
    join(threads)
    assert ends == [1], "its folder is closed"


def test_a_store_that_was_closed_closes_its_folder_once(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    threads, ends, gone = threads_of(store), ends_of(store), weakref.ref(store)
    store.close()
    del store
    until(lambda: gc.collect() >= 0 and gone() is None)
    join(threads)
    assert ends == [1]


@pytest.mark.parametrize("last", ["read", "write"])
def test_of_two_threads_that_are_at_work_when_a_store_is_closed_the_last_one_closes_its_folder(
    tmp_path: Path, before: dict[str, Callable[..., Any]], last: str
) -> None:
    store, stalls = open_store(tmp_path, operations=faulty(before)), {"read": Stall(), "write": Stall()}
    put(store, TOKENS)
    before |= stalls
    store.fetch(b"", TOKENS, 0, 12)
    offer(store, [7] * 4)
    workers, ends = {"read": store._reader, "write": store._writer}, ends_of(store)
    for stall in stalls.values():
        assert stall.is_waiting.wait(HANG_S)
    store.close(0)
    (first,) = workers.keys() - {last}
    stalls[first].go()
    workers[first].ended.result(HANG_S)
    assert ends == [], "it is still used"
    threads = threads_of(store)
    stalls[last].go()
    join(threads)
    assert ends == [1]


def test_a_store_that_only_its_writers_job_refers_to_closes_its_folder_after_it(
    tmp_path: Path, before: dict[str, Callable[..., Any]]
) -> None:
    store, stall = open_store(tmp_path, operations=faulty(before)), Stall()
    before["write"] = stall
    offer(store, TOKENS)
    assert stall.is_waiting.wait(HANG_S)
    threads, ends = threads_of(store), ends_of(store)
    del store
    gc.collect()
    assert ends == []
    stall.go()
    join(threads)
    assert ends == [1]


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


# --- workers and their pace ------------------------------------------------------------------------------------------


def test_a_worker_goes_on_after_a_bug(caplog: pytest.LogCaptureFixture) -> None:
    worker, done = Worker("test"), list[int]()
    assert worker.put(lambda: 1 // 0)
    assert worker.put(lambda: done.append(1))
    assert worker.wait(HANG_S)
    assert done == [1]
    assert "ZeroDivisionError" in caplog.text
    assert worker.close()
    assert not worker.put(lambda: None)


def test_a_worker_takes_no_more_than_it_has_room_for() -> None:
    worker, stall = Worker("test", most=10), Stall()
    assert worker.put(stall, 6)
    assert not worker.put(stall, 5)
    assert worker.put(stall, 4)
    assert not worker.put(stall, 1)
    assert worker.put(stall, 0)
    assert worker.load == 10
    stall.go()
    assert worker.wait(HANG_S)
    assert worker.load == 0


def test_jobs_that_have_not_begun_are_dropped() -> None:
    worker, stall, done = Worker("test"), Stall(), list[int]()
    worker.put(stall)
    worker.put(lambda: done.append(1))
    assert stall.is_waiting.wait(HANG_S)
    assert not worker.close()
    stall.go()
    assert worker.wait(HANG_S)
    assert done == []


def test_the_pace() -> None:
    now = [100.0]
    pace = Pace(10.0, lambda: now[0])
    assert pace.pause_after(20, began=100.0) == 2.0
    now[0] = 102.0
    assert pace.pause_after(5, began=102.0) == 0.5
    now[0] = 200.0  # idle: nothing is saved up
    assert pace.pause_after(10, began=200.0) == 1.0
    now[0] = 205.0  # the disk itself was slower
    assert pace.pause_after(10, began=201.0) == 0.0
    assert Pace(None).pause_after(10**9, 0.0) == 0.0


def test_the_writer_keeps_its_pace_until_it_is_in_a_hurry(tmp_path: Path) -> None:
    store = open_store(tmp_path, bytes_per_second=1.0)  # minutes for each
    offer(store, [7] * 4)
    offer(store, [8] * 4)
    until(lambda: store.match(b"", [7] * 4) == 4)
    assert store.match(b"", [8] * 4) == 0
    assert store.flush(HANG_S) == 0
    assert hit(store, [8] * 4) == 4


def test_what_a_flush_wrote_in_a_hurry_is_not_paused_for_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, pauses = [0.0], list[float | None]()
    store = open_store(tmp_path, bytes_per_second=1.0, clock=lambda: now[0])
    for i in (6, 7, 8):
        offer(store, [i] * 4)
    assert store.flush(HANG_S) == 0
    one = kv_files(tmp_path)[0].stat().st_size
    now[0] += one  # at most one was written before the flush
    monkeypatch.setattr(store._hurry, "wait", pauses.append)
    offer(store, [9] * 4)
    assert store._writer.wait(HANG_S)
    assert pauses == [one]
