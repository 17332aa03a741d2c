"""Files of K/V: what is in one, and that every byte of it counts."""

import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from nanoinfer.cache.storeys.files.block_files import BlockFiles
from nanoinfer.cache.storeys.files.chain import as_tokens
from nanoinfer.cache.storeys.files.file_format import MOST_HEADER_BYTES, FileFormat, Part
from nanoinfer.cache.storeys.files.file_operations import FileOperations
from nanoinfer.cache.storeys.files.folder import Folder
from nanoinfer.cache.storeys.files.names import finished_name
from nanoinfer.cache.storeys.files.permissions import open_folder
from tests.helpers.kv_files import BLOCK, TOKEN_BYTES, faulty, hit, kv_files, kv_of, look, open_store, put

TOKENS = [5, 1, 2, 3, 4, 4, 4, 2**31 - 1, 0, 1, 1, 1]


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    """The bytes of a file with tokens 4..12 of TOKENS."""
    put(open_store(tmp_path / "first"), TOKENS, start=4, namespace=b"n")
    (file,) = kv_files(tmp_path / "first")
    return file.read_bytes()


@pytest.fixture
def planted(tmp_path: Path, content: bytes) -> Path:
    """A folder with such a file."""
    put(open_store(tmp_path / "second"), TOKENS, start=4, namespace=b"n")
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
        np.testing.assert_array_equal(opened.get_tensor("tokens"), TOKENS)
        np.testing.assert_array_equal(opened.get_tensor("kv"), kv_of(b"n", TOKENS, 4, 12))


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
    tokens = as_tokens(TOKENS)
    assert files.read(b"n", tokens, 4, 12) is None
    assert files.reach(b"n", tokens, 4) == 4


def flipped(content: bytes) -> Iterator[bytes]:
    """Each byte in turn with one bit changed."""
    for i, byte in enumerate(content):
        yield content[:i] + bytes([byte ^ (1 << i % 8)]) + content[i + 1 :]


def test_every_byte_that_is_another_is_a_miss(
    planted: Path, content: bytes, new_files: Callable[[], BlockFiles], caplog: pytest.LogCaptureFixture
) -> None:
    (file,) = kv_files(planted)
    for damaged in flipped(content):
        file.write_bytes(content)
        file.chmod(0o600)
        files = new_files()
        assert files.reach(b"n", as_tokens(TOKENS), 4) == 12  # found while it was right
        file.write_bytes(damaged)
        caplog.clear()
        check_miss(files)
        assert len(caplog.records) == 1
        assert not file.exists()


def test_every_byte_that_is_another_is_a_miss_in_a_new_process(
    planted: Path, content: bytes, new_files: Callable[[], BlockFiles]
) -> None:
    (file,) = kv_files(planted)
    for damaged in flipped(content):
        file.write_bytes(damaged)
        file.chmod(0o600)
        check_miss(new_files())
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
        b"{}",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 9000,
        b'{"__metadata__": 1}',
        b'{"__metadata__": {"namespace": "6e", "start": "0", "end": "1e3"}}',
        b'{"__metadata__": {"namespace": "6e", "start": "0", "end": "' + b"9" * 5000 + b'"}}',
        b'{"__metadata__": {"namespace": "6e", "start": "-4", "end": "4"}}',
        b'{"__metadata__": {"namespace": "x", "start": "0", "end": "4"}}',
        b'{"__metadata__": {"namespace": 5, "start": "0", "end": "4"}}',
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
    assert hit(store, TOKENS, start=4, namespace=b"n") == 4


def test_a_file_that_is_huge_is_not_read(tmp_path: Path) -> None:
    asked: list[int] = []
    before = {"read": lambda file, into, offset: asked.append(len(into))}
    store = open_store(tmp_path, operations=faulty(before))
    file_format, part = FileFormat(store.fingerprint, TOKEN_BYTES), Part(b"", 0, 2**28)
    file = tmp_path / finished_name(store.fingerprint, "0" * 64)
    file.write_bytes(file_format.head(part))
    file.chmod(0o600)
    os.truncate(file, file_format.places(part)["checksum"].stop)  # sparse: it takes up no room, but 3 GB would be read
    look(store)
    assert store.stats().files == 0
    assert sum(asked) == 0


def test_a_header_with_the_same_meaning_in_other_words_is_another_one(planted: Path, content: bytes) -> None:
    file_format = FileFormat("f" * 64, TOKEN_BYTES)
    head = file_format.head(Part(b"n", 4, 12))
    size = file_format.places(Part(b"n", 4, 12))["checksum"].stop
    assert file_format.part_of(head, size) == Part(b"n", 4, 12)
    other = json.dumps(json.loads(head[8:]), indent=1).encode()
    assert file_format.part_of(len(other).to_bytes(8, "little") + other, size - len(head) + 8 + len(other)) is None
    assert file_format.part_of(head, size + 1) is None


@pytest.mark.parametrize("other", [{"fingerprint_fields": {"weights": "b"}}, {"token_bytes": TOKEN_BYTES + 2}])
def test_a_whole_file_of_another_model_under_this_ones_name(
    tmp_path: Path, planted: Path, other: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    (file,) = kv_files(planted)
    another, tokens = open_store(tmp_path / "another", **other), np.array(TOKENS)
    known = open_store(planted)
    rows = np.zeros((8, another.token_bytes), dtype=np.uint8)
    assert another.write(b"n", tokens, 4, rows)
    file.write_bytes(kv_files(tmp_path / "another")[0].read_bytes())  # its checksum is right
    file.chmod(0o600)
    copy = file.read_bytes()
    assert hit(known, TOKENS, start=4, namespace=b"n") == 4
    file.write_bytes(copy)
    file.chmod(0o600)
    assert hit(open_store(planted), TOKENS, start=4, namespace=b"n") == 4
    assert len(caplog.records) == 2


@pytest.mark.parametrize("other", [(b"m", TOKENS), (b"n", [6, *TOKENS[1:]])])
def test_a_whole_file_for_other_tokens_under_this_ones_name(planted: Path, other: tuple[bytes, list[int]]) -> None:
    (file,) = kv_files(planted)
    known = open_store(planted)
    namespace, tokens = other
    put(open_store(planted), tokens, start=4, namespace=namespace)
    (second,) = [each for each in kv_files(planted) if each != file]
    file.write_bytes(second.read_bytes())
    assert hit(known, TOKENS, start=4, namespace=b"n") == 4
    new = open_store(planted)
    assert hit(new, TOKENS, start=4, namespace=b"n") == 4
    assert hit(new, tokens, start=4, namespace=namespace) == 12


def test_a_file_under_another_ones_name(planted: Path, content: bytes) -> None:
    store = open_store(planted)
    put(store, TOKENS, namespace=b"m")
    one, two = kv_files(planted)
    two.write_bytes(one.read_bytes())
    new = open_store(planted)
    assert new.stats().files == 1
    assert sorted([hit(new, TOKENS, namespace=b"m"), hit(new, TOKENS, start=4, namespace=b"n")]) in ([0, 12], [4, 12])
    look(store)
    assert hit(store, TOKENS, namespace=b"m") in (0, 12)
