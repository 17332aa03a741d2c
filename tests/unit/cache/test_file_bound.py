"""A folder of K/V: its bound, and that no file is read that another user could have planted."""

import os
import stat
import threading
from pathlib import Path

import pytest

from nanoinfer.cache.storeys.files import FileStore
from tests.helpers.kv_files import (
    faulty,
    hit,
    kv_files,
    look,
    open_store,
    put,
    unfinished_files,
)


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


def test_what_processes_left_unfinished_goes_before_finished_files(tmp_path: Path, one: int) -> None:
    folder = tmp_path / "cache"
    put(open_store(folder), fresh(0))
    (folder / ("unfinished-" + 32 * "0")).write_bytes(bytes(one))
    assert there(open_store(folder, max_bytes=one), 1) == [0]
    assert not unfinished_files(folder)


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


TOKENS = [1, 2, 3, 4]


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o1777])
def test_a_folder_that_others_may_write_to(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "cache"
    put(open_store(folder), TOKENS)
    folder.chmod(mode)
    with pytest.raises(ValueError, match="cache_dir="):
        open_store(folder)


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o500])
def test_a_folder_that_others_may_only_read(tmp_path: Path, mode: int) -> None:
    put(open_store(tmp_path / "cache"), TOKENS)
    (tmp_path / "cache").chmod(mode)
    assert hit(open_store(tmp_path / "cache"), TOKENS) == 4
    (tmp_path / "cache").chmod(0o700)


def test_a_folder_above_that_others_may_write_to(tmp_path: Path) -> None:
    above = tmp_path / "above"
    put(open_store(above / "cache"), TOKENS)
    above.chmod(0o777)
    with pytest.raises(ValueError, match="cache_dir="):
        open_store(above / "cache")
    above.chmod(0o1777)  # sticky, like /tmp: nobody else can put another folder in its place
    assert hit(open_store(above / "cache"), TOKENS) == 4


def test_what_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "cache"):
        with pytest.raises(ValueError, match="cache_dir="):
            open_store(path)


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_may_write_to(tmp_path: Path, mode: int) -> None:
    known = open_store(tmp_path)
    put(known, TOKENS)
    (file,) = kv_files(tmp_path)
    file.chmod(mode)
    new = open_store(tmp_path)
    look(new)
    assert (hit(known, TOKENS), hit(new, TOKENS)) == (0, 0)
    assert file.exists()  # it is not ours to remove


def test_links_pipes_and_folders_are_not_followed(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    put(open_store(elsewhere), TOKENS)
    known = open_store(folder)
    put(known, TOKENS)
    (file,) = kv_files(folder)
    file.unlink()
    file.symlink_to(kv_files(elsewhere)[0])
    assert (hit(known, TOKENS), hit(open_store(folder), TOKENS)) == (0, 0)
    file.unlink()
    os.mkfifo(file)
    assert hit(open_store(folder), TOKENS) == 0  # and does not wait for somebody to write into it
    file.unlink()
    file.mkdir()
    assert hit(open_store(folder), TOKENS) == 0
    assert hit(open_store(elsewhere), TOKENS) == 4


def test_folders_that_are_made_are_for_their_owner_only(tmp_path: Path) -> None:
    old = os.umask(0o002)
    try:
        put(open_store(tmp_path / "new" / "er" / "cache"), TOKENS)
    finally:
        os.umask(old)
    made = [tmp_path / "new", tmp_path / "new" / "er", tmp_path / "new" / "er" / "cache"]
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in made] == [0o700] * 3
