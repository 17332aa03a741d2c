"""The header of a GGUF file: what it says of the model and its tokenizer, and where its tensors are.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The package gguf has a reader, too, but makes several
arrays for each token of a vocabulary: for 49,152 tokens it takes 1.7 seconds, and this takes 0.1.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nanoinfer.errors import UnsupportedModelError, WeightMismatchError

SUFFIX = ".gguf"
MAGIC = b"GGUF"
VERSIONS = (2, 3)
NUMBERS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
STRING, ARRAY = 8, 9
LENGTH = struct.Struct("<Q").unpack_from


@dataclass(frozen=True)
class TensorInfo:
    """A tensor: its shape, as torch has it; the number of its type (gguf.GGMLQuantizationType); where in the file its data
    begins."""

    shape: list[int]
    kind: int
    start: int


@dataclass(frozen=True)
class GGUFHeader:
    """`metadata`: numbers, texts, lists of texts and arrays of numbers by key. `tensors` by name, in the file's order."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key in which `{arch}` stands for the file's architecture."""
        return self.metadata.get(key.replace("{arch}", self.architecture), default)

    @property
    def architecture(self) -> str:
        """The family, in llama.cpp's words."""
        return str(self.metadata.get("general.architecture", ""))


def read_header(path: Path) -> GGUFHeader:
    """The header of the file `path`. WeightMismatchError if it is damaged; UnsupportedModelError if it is one of several
    files of a model, or has another version."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[:4] != MAGIC:
                raise ValueError(f"it begins with {data[:4]!r}")
            header = _read(_Cursor(data), path)
    except (ValueError, struct.error, KeyError) as error:  # UnicodeDecodeError is a ValueError
        raise WeightMismatchError(f"{path}: is not a complete GGUF file; get it once more ({error})") from error
    if header.metadata.get("split.count", 1) > 1:
        raise UnsupportedModelError(
            f"{path}: is one of {header.metadata['split.count']} files; make one of them: "
            f"llama-gguf-split --merge {path} MERGED.gguf"
        )
    return header


class _Cursor:
    """Reads a file from front to back."""

    def __init__(self, data: Any):
        self.data, self.at = data, len(MAGIC)

    def number(self, kind: int) -> Any:
        return self.numbers(kind, 1)[0].item()

    def numbers(self, kind: int, count: int) -> np.ndarray:
        dtype = np.dtype(NUMBERS[kind])
        start, self.at = self.at, self.at + count * dtype.itemsize
        return np.frombuffer(self._bytes(start), dtype)

    def text(self) -> str:
        (length,) = LENGTH(self.data, self.at)
        start, self.at = self.at + 8, self.at + 8 + length
        return self._bytes(start).decode()

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            return self.number(kind)
        inner, count = self.number(4), self.number(10)
        return [self.text() for _ in range(count)] if inner == STRING else self.numbers(inner, count)

    def _bytes(self, start: int) -> bytes:
        if self.at > len(self.data):
            raise ValueError(f"it ends after {len(self.data)} bytes")
        return bytes(self.data[start : self.at])


def _read(cursor: _Cursor, path: Path) -> GGUFHeader:
    version = cursor.number(4)
    if version not in VERSIONS:
        raise UnsupportedModelError(f"{path}: is GGUF of version {version}, must be one of {VERSIONS}")
    num_tensors, num_values = cursor.numbers(10, 2).tolist()
    metadata = {}
    for _ in range(num_values):
        key = cursor.text()
        metadata[key] = cursor.value(cursor.number(4))
    infos = {}
    for _ in range(num_tensors):
        name, num_dims = cursor.text(), cursor.number(4)
        infos[name] = cursor.numbers(10, num_dims).tolist()[::-1], cursor.number(4), cursor.number(10)
    alignment = metadata.get("general.alignment", 32)
    first = -(-cursor.at // alignment) * alignment
    tensors = {name: TensorInfo(shape, kind, first + offset) for name, (shape, kind, offset) in infos.items()}
    if any(tensor.start > len(cursor.data) for tensor in tensors.values()):
        raise ValueError(f"it ends after {len(cursor.data)} bytes")
    return GGUFHeader(path, metadata, tensors)
