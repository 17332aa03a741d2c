"""BlockFiles: what one process writes, others find again; what is damaged, foreign or unsafe is a miss; the bound."""

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from nanoinfer.cache.tiers.block_files import ABANDONED_S, BlockFiles
from nanoinfer.cache.tiers.kv_file import pack, unpack
from tests.helpers.kv_files import BLOCK, TOKEN_BYTES, fields_of, hit, kv_files, kv_of, names_of, open_files, put, total

TOKENS = [7, 7, 1, 2, 3, 9, 8, 7, 7, 7, 7, 7]


def fresh(i: int) -> list[int]:
    """Four tokens that share no block with others."""
    return [i, 1, 1, 1]


# --- what is there ----------------------------------------------------------------------------------------------------


def test_of_a_file_with_several_blocks_those_are_used_that_are_wanted(tmp_path: Path) -> None:
    put(open_files(tmp_path), TOKENS)
    files = open_files(tmp_path)
    assert hit(files, TOKENS[:4]) == 4
    assert hit(files, [*TOKENS[:8], 6, 6, 6, 6]) == 8, "another text goes on otherwise"
    put(files, [*TOKENS[:8], 6, 6, 6, 6])
    for each in (files, open_files(tmp_path)):
        assert hit(each, [*TOKENS[:8], 6, 6, 6, 6]) == hit(each, TOKENS, start=8) == 12
    assert (len(kv_files(tmp_path)), files.misses) == (2, 0)


def test_what_another_process_writes_and_removes_is_noticed(tmp_path: Path) -> None:
    one, two = open_files(tmp_path), open_files(tmp_path)
    put(two, TOKENS)
    assert hit(one, TOKENS) == 0
    one.look()
    assert hit(one, TOKENS) == 12
    put(two, [*TOKENS, 1, 1, 1, 1])
    one.look()
    kv_files(tmp_path)[0].unlink()
    assert (hit(one, [*TOKENS, 1, 1, 1, 1]), one.misses) == (12, 0), "it has made room: that is no fault"
    two.look()
    assert len(two.sizes) == 1
    assert len(two.file_of) == 3


def test_a_file_is_what_safetensors_reads(tmp_path: Path) -> None:
    put(open_files(tmp_path), TOKENS, start=8, namespace=b"n")
    (path,) = kv_files(tmp_path)
    with safe_open(path, "np") as file:
        assert file.metadata()["namespace"] == b"n".hex()
        np.testing.assert_array_equal(file.get_tensor("tokens"), TOKENS)
        np.testing.assert_array_equal(file.get_tensor("kv"), kv_of(b"n", TOKENS, 8, 12))


# --- what is not surely the same is a miss ----------------------------------------------------------------------------

DATA = pack({"one": "1"}, np.arange(8), np.arange(8, dtype=np.uint8).reshape(4, 2))


def damaged() -> Iterator[bytes]:
    """Each byte in turn with one bit changed, and every other length."""
    for i, byte in enumerate(DATA):
        yield DATA[:i] + bytes([byte ^ (1 << i % 8)]) + DATA[i + 1 :]
        yield DATA[:i]
    yield DATA + b"\0"
    yield DATA + DATA
    for header in (b"null", b"\xff\xfe", b"[" * 9000, b'{"__metadata__": 1}', b'{"__metadata__": {"sha256": []}}'):
        yield len(header).to_bytes(8, "little") + header + bytes(100)


def test_whatever_is_damaged_is_refused() -> None:
    fields, tokens, kv = unpack(DATA)
    assert (fields, tokens.tolist(), kv.tolist()) == ({"one": "1"}, [*range(8)], [[0, 1], [2, 3], [4, 5], [6, 7]])
    for data in damaged():
        with pytest.raises(ValueError, match=r"is torn|another checksum"):
            unpack(data)


def test_a_damaged_file_is_a_miss_and_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = open_files(tmp_path)
    put(files, TOKENS)
    longer = [*TOKENS, 1, 1, 1, 1]
    put(files, longer)
    path = kv_files(tmp_path)[0]
    path.write_bytes(path.read_bytes()[:-1])
    assert (hit(files, longer), files.misses, len(caplog.records), path.exists()) == (12, 1, 1, False)
    assert put(files, longer)
    assert hit(files, longer) == 16


@pytest.mark.parametrize(
    "data", [b"", b"no file of K/V", DATA], ids=["nothing", "something", "fields that say nothing"]
)
def test_what_is_no_file_of_blocks_is_removed_when_it_is_found(tmp_path: Path, data: bytes) -> None:
    put(open_files(tmp_path), TOKENS)
    path = kv_files(tmp_path)[0].with_name(f"{'b' * 64}-1.safetensors")
    path.write_bytes(data)
    files = open_files(tmp_path)
    assert (hit(files, TOKENS), len(files.sizes), files.misses, path.exists()) == (12, 1, 1, False)


@pytest.mark.parametrize(
    ("fingerprint", "namespace", "tokens"),
    [("b" * 64, b"n", TOKENS), ("a" * 64, b"m", TOKENS), ("a" * 64, b"n", [6, *TOKENS[1:]])],
    ids=["another model's", "another namespace's", "another text's"],
)
def test_a_whole_file_under_anothers_name_is_a_miss(
    tmp_path: Path, fingerprint: str, namespace: bytes, tokens: list[int]
) -> None:
    files = open_files(tmp_path / "kv")
    put(files, TOKENS, start=8, namespace=b"n")
    put(open_files(tmp_path / "theirs", fingerprint), tokens, start=8, namespace=namespace)
    (mine,), (theirs,) = kv_files(tmp_path / "kv"), kv_files(tmp_path / "theirs")
    theirs.replace(mine)
    assert (hit(files, TOKENS, start=8, namespace=b"n"), files.misses) == (8, 1)


def test_k_v_of_another_size_is_a_miss(tmp_path: Path) -> None:
    other = BlockFiles(tmp_path, "a" * 64, BLOCK, 2 * TOKEN_BYTES)
    put(open_files(tmp_path), TOKENS)
    other.look()
    assert other.read(names_of(TOKENS), 0, fields_of(b""), np.array(TOKENS)) is None
    assert other.misses == 1


# --- disks that fail --------------------------------------------------------------------------------------------------


def test_a_write_that_breaks_off_leaves_no_trace(tmp_path: Path) -> None:
    files = open_files(tmp_path)
    put(files, TOKENS[:4])
    before = kv_files(tmp_path)
    (tmp_path / ("a" * 32) / f"{names_of(TOKENS)[-1]}-2.safetensors").mkdir()  # nothing can be renamed to this
    assert not put(files, TOKENS)
    assert [path for path in (tmp_path / ("a" * 32)).iterdir() if path.is_file()] == before


def test_the_folder_itself_is_removed(tmp_path: Path) -> None:
    files = open_files(tmp_path / "cache")
    put(files, TOKENS)
    for file in kv_files(tmp_path / "cache"):
        file.unlink()
    (tmp_path / "cache" / ("a" * 32)).rmdir()
    (tmp_path / "cache").rmdir()
    assert hit(files, TOKENS) == 0
    assert not put(files, TOKENS)
    files.look()
    assert files.sizes == {}


def test_what_a_killed_process_left_is_removed_in_the_end(tmp_path: Path) -> None:
    put(open_files(tmp_path), TOKENS)
    left = tmp_path / ("a" * 32) / f"{'b' * 64}-17.unfinished"
    left.write_bytes(b"x" * 100)
    assert len(open_files(tmp_path).sizes) == 1
    assert left.exists(), "somebody may be at it"
    long_ago = time.time() - 2 * ABANDONED_S
    os.utime(left, (long_ago, long_ago))
    assert len(open_files(tmp_path).sizes) == 1
    assert not left.exists()


# --- the bound --------------------------------------------------------------------------------------------------------


@pytest.fixture
def one(tmp_path: Path) -> int:
    """How large a file with one block is."""
    put(open_files(tmp_path / "measure"), fresh(0))
    return kv_files(tmp_path / "measure")[0].stat().st_size


def there(files: BlockFiles, count: int) -> list[int]:
    """Which of the sequences `fresh(i)` are known."""
    return [i for i in range(count) if names_of(fresh(i))[0] in files.file_of]


def test_the_bound_is_of_all_engines_together_and_of_no_other_files(tmp_path: Path, one: int) -> None:
    folder = tmp_path / "kv"
    stores = [open_files(folder, name * 64, max_bytes=4 * one) for name in "aab"]
    (folder / "model.safetensors").write_bytes(bytes(10_000))
    for i in range(12):
        assert put(stores[i % 3], fresh(i))
        assert total(folder) <= 4 * one
    assert len(kv_files(folder)) == 4
    stores[0].look()
    assert there(stores[0], 12) == [9, 10]
    assert (folder / "model.safetensors").exists()


def test_a_prefix_stays_longer_than_what_continues_it(tmp_path: Path) -> None:
    files = open_files(tmp_path)

    def newest() -> list[str]:
        return [path.stem for path in reversed(kv_files(tmp_path))][:2]

    put(files, TOKENS[:4])
    put(files, fresh(50))
    put(files, TOKENS, start=4)
    names = names_of(TOKENS)
    assert newest() == [f"{names[0]}-1", f"{names[2]}-2"], "which is used by what is written behind it"
    hit(files, fresh(50))
    hit(files, TOKENS)
    assert newest() == [f"{names[0]}-1", f"{names[2]}-2"]


def test_what_does_not_fit_at_all_is_not_written(tmp_path: Path, one: int) -> None:
    files = open_files(tmp_path / "kv", max_bytes=one - 1)
    assert not put(files, fresh(0))
    assert (files.lost, total(tmp_path / "kv")) == (1, 0)


# --- whose folders are used -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o1777])
def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    put(open_files(tmp_path / "cache"), TOKENS)
    (tmp_path / "cache").chmod(mode)
    with pytest.raises(ValueError, match="cache_dir="):
        open_files(tmp_path / "cache")
    (tmp_path / "cache").chmod(0o755)
    assert hit(open_files(tmp_path / "cache"), TOKENS) == 12, "they may read it"


def test_a_folder_above_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    above = tmp_path / "above"
    put(open_files(above / "cache"), TOKENS)
    above.chmod(0o777)
    with pytest.raises(ValueError, match="cache_dir="):
        open_files(above / "cache")
    above.chmod(0o1777)  # sticky, like /tmp: nobody else can put another folder in its place
    assert hit(open_files(above / "cache"), TOKENS) == 12


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "cache"):
        with pytest.raises(ValueError, match="cache_dir="):
            open_files(path)


def test_folders_that_are_made_are_for_their_owner_only(tmp_path: Path) -> None:
    old = os.umask(0o002)
    try:
        put(open_files(tmp_path / "new" / "cache"), TOKENS)
    finally:
        os.umask(old)
    made = [tmp_path / "new", tmp_path / "new" / "cache", tmp_path / "new" / "cache" / ("a" * 32)]
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in made] == [0o700] * 3
