"""FileStore: what one store writes, it and others find again, and nothing else."""

import logging
from pathlib import Path

import numpy as np
import pytest

from nanoinfer.cache.storeys.files import FileStore, namespace_bytes
from tests.helpers.kv_files import BLOCK, TOKEN_BYTES, hit, kv_files, kv_of, look, open_store, put

TOKENS = [7, 7, 1, 2, 3, 9, 8, 7, 7, 7, 7, 7]


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert store.match(b"", TOKENS) == 0
    assert put(store, TOKENS)
    assert hit(store, TOKENS) == 12
    assert hit(store, [*TOKENS, 5, 5, 5, 5, 5]) == 12
    assert hit(store, TOKENS[:11]) == 8  # whole blocks
    assert hit(store, TOKENS, start=4) == 12
    assert store.match(b"", TOKENS, 12) == 12


def test_another_process_finds_it(tmp_path: Path) -> None:
    put(open_store(tmp_path), TOKENS)
    assert hit(open_store(tmp_path), TOKENS) == 12


def test_a_sequence_that_leaves_in_the_middle_of_a_file_gets_what_it_shares(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, TOKENS)
    assert hit(store, [*TOKENS[:9], 0, 0, 0]) == 8
    assert hit(store, [*TOKENS[:3], 0, *TOKENS[4:]]) == 0  # later blocks are equal, but what is before them is not


def test_runs_are_joined_and_gaps_end_a_match(tmp_path: Path) -> None:
    store, tokens = open_store(tmp_path), list(range(20))
    put(store, tokens[:4])
    put(store, tokens[:12], start=8)
    assert store.match(b"", tokens) == 4
    assert hit(store, tokens, start=8) == 12  # if the first two blocks are elsewhere
    assert put(store, tokens, start=4)
    assert hit(store, tokens) == 20
    assert hit(open_store(tmp_path), tokens) == 20


def test_blocks_that_are_there_are_not_written_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, TOKENS)
    before = store.stats().written_bytes
    assert put(store, TOKENS)
    assert store.stats().written_bytes == before
    put(store, [*TOKENS, 1, 1, 1, 1])
    assert store.stats().blocks == 4


def test_long_runs_are_cut_into_files(tmp_path: Path) -> None:
    store = open_store(tmp_path, file_bytes=2 * BLOCK * TOKEN_BYTES)
    put(store, list(range(20)))
    assert store.stats().files == 3
    assert hit(store, list(range(20))) == 20
    assert hit(open_store(tmp_path), list(range(20))) == 20


def test_tokens_are_compared_and_not_only_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def same_for_all(namespace: bytes, tokens: np.ndarray, block_size: int) -> list[bytes]:
        return [bytes([block]) * 16 for block in range(len(tokens) // block_size)]

    monkeypatch.setattr("nanoinfer.cache.storeys.files.block_files.block_keys", same_for_all)
    known = open_store(tmp_path)
    put(known, TOKENS)
    other = [*TOKENS[:4], 0, *TOKENS[5:]]
    for store in (known, open_store(tmp_path)):
        assert hit(store, TOKENS) == 12
        assert store.match(b"", other) == 12  # by hashes
        assert hit(store, other) == 0
        assert kv_files(tmp_path)  # it is not damaged


def test_namespaces_are_apart(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, TOKENS, namespace=b"a")
    assert hit(store, TOKENS, namespace=b"b") == 0
    put(store, TOKENS, namespace=b"b")
    again = open_store(tmp_path)
    assert [hit(again, TOKENS, namespace=name) for name in (b"a", b"b", b"ab", b"")] == [12, 12, 0, 0]


@pytest.mark.parametrize(
    "other",
    [
        {"fingerprint_fields": {"weights": "b"}},
        {"fingerprint_fields": {"weights": "a", "more": 1}},
        {"fingerprint_fields": {"weight": "a"}},
        {"token_bytes": TOKEN_BYTES * 2},
        {"block_size": 2 * BLOCK},
        {"block_size": 2},
    ],
)
def test_another_fingerprint_finds_nothing(tmp_path: Path, other: dict[str, object]) -> None:
    put(open_store(tmp_path), TOKENS)
    assert open_store(tmp_path, **other).stats().files == 0
    assert hit(open_store(tmp_path), TOKENS) == 12  # and does no harm


def test_other_versions_find_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(open_store(tmp_path), TOKENS)
    for name in ("VERSION", "__version__"):
        with monkeypatch.context() as patch:
            patch.setattr(f"nanoinfer.cache.storeys.files.store.{name}", "2")
            assert open_store(tmp_path).stats().files == 0


def test_what_another_process_writes_and_removes_is_noticed(tmp_path: Path) -> None:
    now = [0.0]
    one, two = open_store(tmp_path, clock=lambda: now[0]), open_store(tmp_path)
    put(two, TOKENS)
    assert one.match(b"", TOKENS) == 0  # it has just looked
    look(one)
    assert hit(one, TOKENS) == 12
    for file in kv_files(tmp_path):
        file.unlink()
    now[0] += 2
    one.match(b"", TOKENS)  # begins to look
    look(one)
    assert one.match(b"", TOKENS) == 0


def test_two_stores_write_the_same_at_the_same_time(tmp_path: Path) -> None:
    one, two = open_store(tmp_path), open_store(tmp_path)
    assert put(one, TOKENS)
    assert put(two, TOKENS)
    assert len(kv_files(tmp_path)) == 1
    assert hit(one, TOKENS) == hit(two, TOKENS) == 12


def test_the_same_blocks_in_several_files(tmp_path: Path) -> None:
    one, two = open_store(tmp_path), open_store(tmp_path)
    put(one, TOKENS)
    put(two, TOKENS[:8])
    put(two, [*TOKENS[:8], 1, 1, 1, 1], start=4)
    look(one)
    assert one.stats().files == 3
    damaged = max(kv_files(tmp_path), key=lambda file: file.stat().st_size)
    damaged.write_bytes(b"x" * damaged.stat().st_size)
    assert [hit(one, TOKENS), hit(one, TOKENS)] == [8, 8]  # from the others
    assert hit(one, [*TOKENS[:8], 1, 1, 1, 1]) == 12


def test_arguments_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    store, kv = open_store(tmp_path), kv_of(b"", TOKENS, 0, 12)
    with pytest.raises(ValueError, match="start=3: must be a multiple of block_size=4"):
        store.match(b"", TOKENS, 3)
    with pytest.raises(ValueError, match="end=6"):
        store.read(b"", TOKENS, 0, 6)
    with pytest.raises(ValueError, match="start=-4"):
        store.fetch(b"", TOKENS, -4, 4)
    with pytest.raises(ValueError, match="end=11"):
        store.write(b"", TOKENS[:11], 0, kv[:11])
    with pytest.raises(ValueError, match="tokens: 12, must be as many as start=4 and the 12 of kv"):
        store.offer(b"", TOKENS, 4, kv)
    with pytest.raises(ValueError, match=r"kv: uint8 \[12, 5\], must be uint8 \[12, 6\]"):
        store.write(b"", TOKENS, 0, kv[:, :5])
    with pytest.raises(ValueError, match="kv: int8"):
        store.write(b"", TOKENS, 0, kv.view(np.int8))
    with pytest.raises(ValueError, match="namespace: 5000 bytes"):
        store.write(b"n" * 5000, TOKENS, 0, kv)
    with pytest.raises(ValueError, match="must fit in 32 bits"):
        store.match(b"", [2**31])
    with pytest.raises(ValueError, match="tokens: must be integers"):
        store.match(b"", np.array([0.5]))
    for name in ("block_size", "token_bytes", "max_bytes", "file_bytes", "queued_bytes", "bytes_per_second"):
        with pytest.raises(ValueError, match=f"{name}=0: must be at least 1"):
            open_store(tmp_path, **{name: 0})
    with pytest.raises(ValueError, match="fingerprint: engine: layout="):
        open_store(tmp_path, fingerprint_fields={"layout": [1]})
    assert kv_files(tmp_path) == []


def test_a_closed_store_finds_and_writes_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, TOKENS)
    assert [store.close(), store.close()] == [0, 0]
    assert store.match(b"", TOKENS) == 0
    assert store.read(b"", TOKENS, 0, 12) is None
    assert store.fetch(b"", TOKENS, 0, 12).result() is None
    assert not put(store, TOKENS)
    assert not store.offer(b"", TOKENS, 0, kv_of(b"", TOKENS, 0, 12))
    assert store.flush() == 0


def test_the_folder_is_made_for_its_owner_only(tmp_path: Path) -> None:
    put(open_store(tmp_path / "a" / "b"), TOKENS)
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    assert [file.stat().st_mode & 0o777 for file in kv_files(tmp_path / "a" / "b")] == [0o600]


def test_nothing_is_said_when_nothing_is_wrong(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "model.safetensors").write_text("somebody else's")
    with caplog.at_level(logging.DEBUG, "nanoinfer"):
        store = FileStore(tmp_path, 10**6, {}, TOKEN_BYTES, BLOCK)
        look(store)
        put(store, TOKENS)
        hit(store, TOKENS)
        store.close()
    assert caplog.text == ""
    assert (tmp_path / "model.safetensors").exists()


def test_namespaces_as_bytes() -> None:
    values = [None, True, 1, "1", b"1", "", b"", (), (1,), (1, 2), ((1,), 2), ("1", b"1"), "é", "None", 0, False, -1]
    values += ["\U0001f600", "\ud83d\ude00", "\ud83d", "\\ud83d"]
    texts = [namespace_bytes(value) for value in values]
    assert None not in texts
    assert len(set(texts)) == len(values)
    assert namespace_bytes((1, "a", None)) == namespace_bytes((1, "a", None))
    for other in (1.5, object(), [1], {"a": 1}, (1, [2]), "x" * 5000, type("Text", (str,), {})("a"), frozenset()):
        assert namespace_bytes(other) is None
