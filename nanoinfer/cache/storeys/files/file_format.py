"""FileFormat: one file of K/V. It is a safetensors file: a length, a JSON header, and the numbers. Nothing in it is code.

    length of the header, 8 bytes │ header │ tokens │ K/V of tokens start..end │ SHA-256 of all before it

    tokens    int32 [end]                     all of them up to `end`, because K/V depends on all of them
    kv        uint8 [end - start, token_bytes]
    checksum  uint8 [32]

A header follows from what the file is for, and so does its size: a reader makes the header that it wants to see, and
compares it byte by byte.
"""

import json
from dataclasses import dataclass
from hashlib import sha256

VERSION = 1
MOST_HEADER_BYTES = 1 << 16
CHECKSUM_BYTES = 32
ALIGNMENT = 8  # of the numbers, in safetensors files


@dataclass(frozen=True)
class Part:
    """What a file is for: K/V of tokens `start..end` of a sequence in a namespace."""

    namespace: bytes
    start: int
    end: int


class FileFormat:
    """The files with one fingerprint, and with `token_bytes` bytes of K/V per token."""

    def __init__(self, fingerprint: str, token_bytes: int):
        self.fingerprint, self.token_bytes = fingerprint, token_bytes

    def head(self, part: Part) -> bytes:
        """Everything before the numbers: the length, and the header."""
        metadata = {
            "format": f"nanoinfer K/V {VERSION}",
            "fingerprint": self.fingerprint,
            "namespace": part.namespace.hex(),
            "start": str(part.start),
            "end": str(part.end),
        }
        header: dict[str, object] = {"__metadata__": metadata}
        for name, (dtype, shape, place) in self._tensors(part).items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": place}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % ALIGNMENT)
        return len(text).to_bytes(8, "little") + text

    def places(self, part: Part) -> dict[str, slice]:
        """Which bytes of the file are `tokens`, `kv` and `checksum`, which is the end."""
        first = len(self.head(part))
        return {name: slice(first + begin, first + end) for name, (_, _, (begin, end)) in self._tensors(part).items()}

    def part_of(self, head: bytes, size: int) -> Part | None:
        """What a file of `size` bytes that begins with `head` is for; None if these are no such file's."""
        try:
            metadata = json.loads(head[8:])["__metadata__"]
            part = Part(bytes.fromhex(metadata["namespace"]), int(metadata["start"]), int(metadata["end"]))
            if 0 <= part.start < part.end and self.head(part) == head:
                return part if self.places(part)["checksum"].stop == size else None
        except (ValueError, LookupError, TypeError, RecursionError):
            pass
        return None

    @staticmethod
    def header_bytes(length: bytes) -> int | None:
        """How long the header is, from the first 8 bytes of a file; None if that cannot be."""
        size = int.from_bytes(length, "little")
        return size if len(length) == 8 and 0 < size <= MOST_HEADER_BYTES else None

    def _tensors(self, part: Part) -> dict[str, tuple[str, list[int], list[int]]]:
        """In order: dtype, shape, and where it is from the first number on."""
        tokens = 4 * part.end
        kv = tokens + (part.end - part.start) * self.token_bytes
        return {
            "tokens": ("I32", [part.end], [0, tokens]),
            "kv": ("U8", [part.end - part.start, self.token_bytes], [tokens, kv]),
            "checksum": ("U8", [CHECKSUM_BYTES], [kv, kv + CHECKSUM_BYTES]),
        }


def checksum(*data: memoryview | bytes) -> bytes:
    """SHA-256 of bytes one after the other: processors have instructions for it, and it lets other threads run."""
    digest = sha256()
    for each in data:
        digest.update(each)
    return digest.digest()
