"""FileStore: what one store writes, it and others find again; whatever is damaged or foreign is a miss."""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from nanoinfer.cache.storeys.files import namespace_bytes
from nanoinfer.cache.storeys.files.block_files import BlockFiles
from nanoinfer.cache.storeys.files.file_format import MOST_HEADER_BYTES, FileFormat
from nanoinfer.cache.storeys.files.file_operations import FileOperations
from nanoinfer.cache.storeys.files.folder import Folder, open_folder
from nanoinfer.cache.storeys.files.keys import as_tokens
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


def test_blocks_that_are_there_are_not_written_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, TOKENS)
    before = store.stats().written_files
    assert put(store, TOKENS)
    assert store.stats().written_files == before
    put(store, [*TOKENS, 1, 1, 1, 1])
    assert store.stats().blocks == 4


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


def test_namespaces_as_bytes() -> None:
    values = [None, True, 1, "1", b"1", "", b"", (), (1,), (1, 2), ((1,), 2), ("1", b"1"), "é", "None", 0, False, -1]
    values += ["\U0001f600", "\ud83d\ude00", "\ud83d", "\\ud83d"]
    texts = [namespace_bytes(value) for value in values]
    assert None not in texts
    assert len(set(texts)) == len(values)
    assert namespace_bytes((1, "a", None)) == namespace_bytes((1, "a", None))
    for other in (1.5, object(), [1], {"a": 1}, (1, [2]), "x" * 5000, type("Text", (str,), {})("a"), frozenset()):
        assert namespace_bytes(other) is None


IN_FILE = [5, 1, 2, 3, 4, 4, 4, 2**31 - 1, 0, 1, 1, 1]


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    """The bytes of a file with tokens 4..12 of IN_FILE."""
    put(open_store(tmp_path / "first"), IN_FILE, start=4, namespace=b"n")
    (file,) = kv_files(tmp_path / "first")
    return file.read_bytes()


@pytest.fixture
def planted(tmp_path: Path, content: bytes) -> Path:
    """A folder with such a file."""
    put(open_store(tmp_path / "second"), IN_FILE, start=4, namespace=b"n")
    return tmp_path / "second"


def test_a_file_is_what_safetensors_reads(planted: Path) -> None:
    (file,) = kv_files(planted)
    with safe_open(file, "np") as opened:
        metadata = opened.metadata()
        assert [metadata[name] for name in ("format", "start", "end", "namespace")] == [
            "nanoinfer K/V 1",
            "4",
            "12",
            "6e",
        ]
        assert metadata["fingerprint"] == open_store(planted).fingerprint
        np.testing.assert_array_equal(opened.get_tensor("tokens"), IN_FILE)
        np.testing.assert_array_equal(opened.get_tensor("kv"), kv_of(b"n", IN_FILE, 4, 12))


@pytest.fixture
def new_files(planted: Path) -> Iterator[Callable[[], BlockFiles]]:
    """Makes what is in a store, without threads, which would take most of the time; it has looked into the folder."""
    folder = open_folder(planted)
    files = Folder(FileOperations(folder), FileFormat(open_store(planted).fingerprint, TOKEN_BYTES))

    def make() -> BlockFiles:
        made = BlockFiles(files, BLOCK, 100)
        made.look()
        return made

    yield make
    os.close(folder)


def check_miss(files: BlockFiles) -> None:
    """Nothing comes back, whatever is promised, and after that, nothing is promised."""
    tokens = as_tokens(IN_FILE)
    assert files.read(b"n", tokens, 4, 12) is None
    assert files.reach(b"n", tokens, 4) == 4


def flipped(content: bytes) -> Iterator[bytes]:
    """Each byte in turn with one bit changed."""
    for i, byte in enumerate(content):
        yield content[:i] + bytes([byte ^ (1 << i % 8)]) + content[i + 1 :]


@pytest.mark.parametrize("is_known", [True, False], ids=["found while it was right", "in a new process"])
def test_every_byte_that_is_another_is_a_miss(
    is_known: bool, planted: Path, content: bytes, new_files: Callable[[], BlockFiles], caplog: pytest.LogCaptureFixture
) -> None:
    (file,) = kv_files(planted)
    for damaged in flipped(content):
        file.write_bytes(content if is_known else damaged)
        file.chmod(0o600)
        caplog.clear()
        files = new_files()
        if is_known:
            assert files.reach(b"n", as_tokens(IN_FILE), 4) == 12
            file.write_bytes(damaged)
        check_miss(files)
        assert len(caplog.records) == 1
        assert not file.exists()


def test_every_length_but_the_right_one_is_a_miss(
    planted: Path, content: bytes, new_files: Callable[[], BlockFiles]
) -> None:
    (file,) = kv_files(planted)
    for cut in [*(content[:i] for i in range(0, len(content), 2)), content[:-1], content + b"\0", content + content]:
        file.write_bytes(content)
        file.chmod(0o600)
        known = new_files()
        file.write_bytes(cut)
        check_miss(new_files())
        file.write_bytes(cut)
        file.chmod(0o600)
        check_miss(known)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"null",
        b"\xff\xfe",
        b"[" * 9000,
        b'{"__metadata__": 1}',
        b'{"__metadata__": {"namespace": "6e", "start": "-4", "end": "4"}}',
        b'{"__metadata__": {"namespace": "6e", "start": [], "end": "4"}}',
    ],
)
def test_headers_that_are_none(planted: Path, header: bytes, caplog: pytest.LogCaptureFixture) -> None:
    (file,) = kv_files(planted)
    file.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 100)
    with caplog.at_level(logging.INFO):
        assert open_store(planted).stats().misses == 1
    assert len(caplog.records) == 1


@pytest.mark.parametrize("length", [0, MOST_HEADER_BYTES + 1, 2**63, 2**64 - 1])
def test_a_header_that_says_it_is_huge_is_not_read(planted: Path, content: bytes, length: int) -> None:
    (file,) = kv_files(planted)
    with file.open("r+b") as opened:
        opened.write(length.to_bytes(8, "little"))
        opened.truncate(1 << 40)  # sparse
    store = open_store(planted)
    assert store.stats().files == 0
    assert hit(store, IN_FILE, start=4, namespace=b"n") == 4


@pytest.mark.parametrize("other", [{"fingerprint_fields": {"weights": "b"}}, {"token_bytes": TOKEN_BYTES + 2}])
def test_a_whole_file_of_another_model_under_this_ones_name(
    tmp_path: Path, planted: Path, other: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    (file,) = kv_files(planted)
    another, tokens = open_store(tmp_path / "another", **other), np.array(IN_FILE)
    known = open_store(planted)
    rows = np.zeros((8, another.token_bytes), dtype=np.uint8)
    assert another.write(b"n", tokens, 4, rows)
    file.write_bytes(kv_files(tmp_path / "another")[0].read_bytes())  # its checksum is right
    file.chmod(0o600)
    copy = file.read_bytes()
    assert hit(known, IN_FILE, start=4, namespace=b"n") == 4
    file.write_bytes(copy)
    file.chmod(0o600)
    assert hit(open_store(planted), IN_FILE, start=4, namespace=b"n") == 4
    assert len(caplog.records) == 2


@pytest.mark.parametrize("other", [(b"m", IN_FILE), (b"n", [6, *IN_FILE[1:]])])
def test_a_whole_file_for_other_tokens_under_this_ones_name(planted: Path, other: tuple[bytes, list[int]]) -> None:
    (file,) = kv_files(planted)
    known = open_store(planted)
    namespace, tokens = other
    put(open_store(planted), tokens, start=4, namespace=namespace)
    (second,) = [each for each in kv_files(planted) if each != file]
    file.write_bytes(second.read_bytes())
    assert hit(known, IN_FILE, start=4, namespace=b"n") == 4
    new = open_store(planted)
    assert hit(new, IN_FILE, start=4, namespace=b"n") == 4
    assert hit(new, tokens, start=4, namespace=namespace) == 12
