"""No file is read that another user could have planted, unless asked for."""

import os
import re
import stat
from pathlib import Path

import pytest

from nanoinfer.cache.storeys.files import permissions
from tests.helpers.kv_files import faulty, hit, kv_files, look, open_store, put
from tests.helpers.own_names import module_with

TOKENS = [1, 2, 3, 4]


class Status:
    """A status with another owner; a test cannot give files away."""

    def __init__(self, status: os.stat_result, uid: int):
        self._status, self.st_uid = status, uid

    def __getattr__(self, name: str) -> object:
        return getattr(self._status, name)


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777, 0o720, 0o1777])
def test_a_folder_that_others_may_write_to(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "cache"
    put(open_store(folder), TOKENS)
    folder.chmod(mode)
    with pytest.raises(ValueError, match=f"cache_dir='{folder}': .*can be written by others .mode {mode:o}."):
        open_store(folder)
    assert hit(open_store(folder, trust=True), TOKENS) == 4


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
    with pytest.raises(ValueError, match=f"{above} can be written by others"):
        open_store(above / "cache")
    above.chmod(0o1777)  # sticky, like /tmp: nobody else can put another folder in its place
    assert hit(open_store(above / "cache"), TOKENS) == 4


def test_a_folder_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    put(open_store(folder), TOKENS)
    monkeypatch.setattr(permissions, "os", module_with(os, fstat=lambda folder: Status(os.fstat(folder), 4711)))
    with pytest.raises(ValueError, match=re.escape(f"{folder} belongs to user 4711, not to {os.geteuid()}")):
        open_store(folder)
    assert hit(open_store(folder, trust=True), TOKENS) == 4


def test_what_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "cache"):
        with pytest.raises(ValueError, match=f"cache_dir='{path}': is no folder and cannot be made one"):
            open_store(path)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_to(tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture) -> None:
    known = open_store(tmp_path)
    put(known, TOKENS)
    (file,) = kv_files(tmp_path)
    file.chmod(mode)
    new = open_store(tmp_path)
    look(new)
    assert (hit(known, TOKENS), hit(new, TOKENS)) == (0, 0)
    assert caplog.text.count(f"can be written by others (mode {mode:o})") == 2  # a line each
    assert file.exists()  # it is not ours to remove
    assert hit(open_store(tmp_path, trust=True), TOKENS) == 4


def test_a_file_of_another_user(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(open_store(tmp_path), TOKENS)
    for uid, reached in ((4711, 0), (0, 4)):
        store = open_store(
            tmp_path, operations=faulty({"status_of": lambda file, uid=uid: Status(os.fstat(file), uid)})
        )
        assert hit(store, TOKENS) == reached
    assert caplog.text.count("belongs to user 4711") == 1


def test_links_pipes_and_folders_are_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
    assert caplog.text.count("is no regular file") == 2
    assert hit(open_store(elsewhere), TOKENS) == 4


def test_the_folder_stays_the_one_that_was_checked(tmp_path: Path) -> None:
    store = open_store(tmp_path / "cache")
    put(store, TOKENS)
    (tmp_path / "cache").rename(tmp_path / "moved")
    put(open_store(tmp_path / "cache"), [5, 6, 7, 8])
    look(store)
    assert hit(store, [5, 6, 7, 8]) == 0
    assert hit(store, TOKENS) == 4


def test_folders_that_are_made_are_for_their_owner_only(tmp_path: Path) -> None:
    old = os.umask(0o002)
    try:
        put(open_store(tmp_path / "new" / "er" / "cache"), TOKENS)
    finally:
        os.umask(old)
    made = [tmp_path / "new", tmp_path / "new" / "er", tmp_path / "new" / "er" / "cache"]
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in made] == [0o700] * 3
