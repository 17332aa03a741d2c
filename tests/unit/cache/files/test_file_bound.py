"""The bound of a folder: what was used longest ago goes first, whatever clocks say."""

import errno
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nanoinfer.cache.storeys.files import FileStore, last_use
from nanoinfer.cache.storeys.files.last_use import LastUse
from tests.helpers.kv_files import (
    BLOCK,
    TOKEN_BYTES,
    fails,
    faulty,
    hit,
    kv_files,
    look,
    open_store,
    put,
    unfinished_files,
)
from tests.helpers.own_names import module_with
from tests.helpers.waiting import HANG_S


def fresh(i: int) -> list[int]:
    """Four tokens that share no block with others."""
    return [i, 1, 1, 1]


def size_of_one(folder: Path) -> int:
    put(open_store(folder), fresh(0))
    return kv_files(folder)[0].stat().st_size


@pytest.fixture
def one(tmp_path: Path) -> int:
    """How large a file with one block is."""
    return size_of_one(tmp_path / "measure")


def there(store: FileStore, count: int) -> list[int]:
    """Which of the sequences `fresh(i)` are known."""
    return [i for i in range(count) if store.match(b"", fresh(i)) == 4]


def total(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def test_what_was_used_longest_ago_goes_first(tmp_path: Path, one: int) -> None:
    store = open_store(tmp_path / "cache", max_bytes=3 * one)
    for i in range(3):
        put(store, fresh(i))
    assert hit(store, fresh(0)) == 4  # used now
    put(store, fresh(3))
    assert there(store, 4) == [0, 2, 3]
    assert hit(store, fresh(2)) == 4
    put(store, fresh(4))
    assert there(store, 5) == [2, 3, 4]
    assert there(open_store(tmp_path / "cache"), 5) == [2, 3, 4]


def test_a_bound_that_is_lower_than_before_holds_before_anything_is_written(tmp_path: Path, one: int) -> None:
    """In the reader's thread: whoever opens the folder does not wait for it."""
    folder, threads = tmp_path / "cache", set[str]()
    before = open_store(folder)
    for i in range(5):
        put(before, fresh(i))
    hit(before, fresh(0))
    operations = faulty({"remove": lambda name: threads.add(threading.current_thread().name)})
    store = open_store(folder, max_bytes=2 * one + 1, operations=operations)
    assert (len(kv_files(folder)), there(store, 5)) == (2, [0, 4])
    assert (store.stats().files, store.stats().written_files, threads) == (2, 0, {"nanoinfer reads K/V"})
    assert there(open_store(folder, max_bytes=2 * one), 5) == [0, 4], "nothing more has to go"
    assert there(open_store(folder), 5) == [0, 4]


def test_what_the_first_look_has_removed_is_not_found(tmp_path: Path, one: int) -> None:
    folder = tmp_path / "cache"
    before = open_store(folder)
    for i in range(3):
        put(before, fresh(i))
    options: dict[str, Any] = {"fingerprint_fields": {"weights": "a"}, "token_bytes": TOKEN_BYTES, "block_size": BLOCK}
    store = FileStore(folder, one, **options, clock=lambda: 0.0)  # so it does not look again
    assert store._reader.wait(HANG_S)
    assert (there(store, 3), store.stats().files) == ([2], 1)


def test_what_processes_left_unfinished_goes_before_finished_files(tmp_path: Path, one: int) -> None:
    folder = tmp_path / "cache"
    put(open_store(folder), fresh(0))
    (folder / ("unfinished-" + 32 * "0")).write_bytes(bytes(one))
    assert there(open_store(folder, max_bytes=one), 1) == [0]
    assert not unfinished_files(folder)


def test_a_folder_in_which_nothing_can_be_removed_is_used_as_it_is(
    tmp_path: Path, one: int, caplog: pytest.LogCaptureFixture
) -> None:
    folder, looks = tmp_path / "cache", list[None]()
    put(open_store(folder), fresh(0))
    put(open_store(folder), fresh(1))
    assert there(open_store(folder, max_bytes=one, operations=faulty({"remove": fails(errno.EACCES)})), 2) == [0, 1]

    def names() -> None:
        looks.append(None)
        if len(looks) == 2:  # the first one is `look`
            raise OSError(errno.EIO, "Input/output error")

    with caplog.at_level(logging.WARNING):
        assert there(open_store(folder, max_bytes=one, operations=faulty({"names": names})), 2) == [0, 1]
    assert "the folder is not kept within its bound: Input/output error" in caplog.text


def test_the_bound_is_of_all_stores_together(tmp_path: Path, one: int) -> None:
    folder = tmp_path / "cache"
    stores = [open_store(folder, max_bytes=4 * one, fingerprint_fields={"weights": name}) for name in "aab"]
    for i in range(12):
        assert put(stores[i % 3], fresh(i))
        assert total(folder) <= 4 * one
    assert len(kv_files(folder)) == 4
    look(stores[0])
    assert there(stores[0], 12) == [9, 10]


def test_a_prefix_stays_longer_than_what_continues_it(tmp_path: Path, one: int) -> None:
    folder = tmp_path / "cache"
    store = open_store(folder, max_bytes=10 * one)
    tokens = list(range(12))
    put(store, tokens[:4])
    put(store, fresh(50))
    put(store, tokens[:8], start=4)
    put(store, tokens, start=8)
    ends = [file.stat().st_size for file in kv_files(folder)[1:]]  # a file has all tokens up to its end
    assert ends == sorted(ends, reverse=True)
    hit(store, tokens)
    ends = [file.stat().st_size for file in kv_files(folder)[1:]]
    assert ends == sorted(ends, reverse=True)


def test_what_does_not_fit_at_all_is_not_written(tmp_path: Path, one: int, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(tmp_path / "cache", max_bytes=one + 20)
    put(store, fresh(0))
    assert not put(store, list(range(100)))
    assert "must be at most" in caplog.text
    assert there(store, 1) == [0]


def test_files_of_others_are_neither_counted_nor_removed(tmp_path: Path, one: int) -> None:
    folder = tmp_path / "cache"
    store = open_store(folder, max_bytes=one)
    for name in ("model.safetensors", "a-b.safetensors", "unfinished-x"):
        (folder / name).write_bytes(b"x" * 10_000)
    for i in range(3):
        put(store, fresh(i))
    assert there(store, 3) == [2]
    assert sorted(file.name for file in folder.iterdir() if len(file.name) < 40) == [
        "a-b.safetensors",
        "model.safetensors",
        "unfinished-x",
    ]


def test_what_others_are_writing_counts_whole(tmp_path: Path, one: int) -> None:
    folder = tmp_path / "cache"
    before: dict[str, Callable[..., Any]] = {}
    slow, store = (
        open_store(folder, max_bytes=3 * one, operations=faulty(before)),
        open_store(folder, max_bytes=3 * one),
    )
    for i in range(2):
        put(store, fresh(i))

    def meanwhile(*_: object) -> None:
        before.clear()
        assert total(folder) == 3 * one  # the one that is being written, too
        assert put(store, fresh(2))
        assert total(folder) <= 3 * one

    before["write"] = meanwhile
    assert put(slow, fresh(3))
    assert total(folder) <= 3 * one
    look(store)
    assert there(store, 4) == [1, 2, 3]


def test_when_others_write_too_much_nothing_is_written(
    tmp_path: Path, one: int, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "cache"
    before: dict[str, Callable[..., Any]] = {}
    slow, store = open_store(folder, max_bytes=one, operations=faulty(before)), open_store(folder, max_bytes=one)

    def meanwhile(*_: object) -> None:
        assert not put(store, fresh(2))

    before["write"] = meanwhile
    assert put(slow, fresh(3))
    assert "no room" in caplog.text
    assert unfinished_files(folder) == []


def test_files_that_cannot_be_removed_still_count(tmp_path: Path, one: int) -> None:
    before: dict[str, Callable[..., Any]] = {}
    store = open_store(tmp_path / "cache", max_bytes=2 * one, operations=faulty(before))
    put(store, fresh(0))
    put(store, fresh(1))
    stuck = kv_files(tmp_path / "cache")[0].name

    def remove(name: str) -> None:
        if name == stuck:
            raise PermissionError

    before["remove"] = remove
    assert put(store, fresh(2))
    assert there(store, 3) == [0, 2]
    assert total(tmp_path / "cache") <= 2 * one
    before.clear()
    assert put(store, fresh(3))
    assert there(store, 4) == [2, 3]  # it goes when it can


def test_files_that_another_process_removed_do_not_count(tmp_path: Path, one: int) -> None:
    store = open_store(tmp_path / "cache", max_bytes=3 * one)
    for i in range(3):
        put(store, fresh(i))
    kv_files(tmp_path / "cache")[-1].unlink()
    put(store, fresh(3))
    look(store)
    assert there(store, 4) == [0, 1, 3]


@pytest.mark.parametrize("jump", [-(10**18), 10**18])
def test_a_clock_that_jumps_changes_no_order(
    tmp_path: Path, one: int, jump: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_700_000_000 * 10**9]
    monkeypatch.setattr(last_use, "time", module_with(time, time_ns=lambda: now[0]))
    store = open_store(tmp_path / "cache", max_bytes=3 * one)
    put(store, fresh(0))
    put(store, fresh(1))
    now[0] += jump
    put(store, fresh(2))
    hit(store, fresh(0))
    now[0] -= jump
    hit(store, fresh(2))
    put(store, fresh(3))
    assert there(store, 4) == [0, 2, 3]
    other = open_store(tmp_path / "cache", max_bytes=3 * one)  # a process that does not know of the jumps
    hit(other, fresh(0))
    put(other, fresh(4))
    assert there(other, 5) == [0, 3, 4]


class Times:
    """Operations and a status of which only the time matters."""

    def __init__(self) -> None:
        self.st_mtime_ns, self.touched = 0, list[tuple[str, int]]()

    def touch(self, name: str, time_ns: int) -> None:
        self.touched.append((name, time_ns))


def test_a_time_that_cannot_be_is_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_use, "time", module_with(time, time_ns=lambda: 50))
    times: Any = Times()
    uses = LastUse(times)
    seen = []
    for times.st_mtime_ns in (100, 2**62, 2**64, 2**62 - 9):
        seen.append(uses.saw(times))
    assert seen == [100, 0, 0, 2**62 - 9]
    uses.now(["a", "b"])
    assert times.touched == [("a", 2**62 - 8), ("b", 2**62 - 7)]


def test_a_file_that_is_used_while_room_is_made_stays(tmp_path: Path, one: int) -> None:
    store, other = (open_store(tmp_path / "cache", max_bytes=3 * one) for _ in range(2))
    for i in range(3):
        put(store, fresh(i))
    look(other)
    assert hit(other, fresh(0)) == 4  # the first store only sees it when it looks again
    put(store, fresh(3))
    assert there(store, 4) == [0, 2, 3]
    for file in kv_files(tmp_path / "cache")[:2]:
        file.unlink()  # by another process
    put(store, fresh(4))
    assert len(kv_files(tmp_path / "cache")) == 2
    put(store, fresh(5))
    put(store, fresh(6))
    look(other)
    assert there(other, 7)[-3:] == [4, 5, 6]
    assert total(tmp_path / "cache") <= 3 * one
