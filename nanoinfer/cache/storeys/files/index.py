"""FileIndex: which blocks are in which files, in memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class StoredFile:
    """A file with the blocks `first..end` of a sequence, whose keys are `keys` (see chain.py). `size` in bytes; `identity`:
    another file of this name has another one."""

    name: str
    size: int
    identity: tuple[int, int]
    first: int
    keys: Sequence[bytes]

    @property
    def end(self) -> int:
        return self.first + len(self.keys)


class FileIndex:
    """The files of one store that were found or written, by name and by the keys of their blocks.

    A block may be in several files. It knows nothing of disks: whoever reads a file may find that it is gone.
    """

    def __init__(self) -> None:
        self._files: dict[str, StoredFile] = {}
        self._by_key: dict[bytes, list[StoredFile]] = {}
        self.num_bytes = 0  # of all files

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, name: object) -> bool:
        return name in self._files

    @property
    def num_blocks(self) -> int:
        """How many different blocks there are."""
        return len(self._by_key)

    @property
    def names(self) -> set[str]:
        """The names of all files."""
        return set(self._files)

    def add(self, file: StoredFile) -> None:
        """Note a file; another one of its name is forgotten."""
        self.remove(file.name)
        self._files[file.name] = file
        self.num_bytes += file.size
        for key in file.keys:
            self._by_key.setdefault(key, []).append(file)

    @property
    def files(self) -> list[StoredFile]:
        """All files."""
        return list(self._files.values())

    def remove(self, name: str) -> list[bytes]:
        """Forget a file, if it is known. Returns the keys of blocks that no file has any more."""
        if (file := self._files.pop(name, None)) is None:
            return []
        self.num_bytes -= file.size
        gone = []
        for key in file.keys:
            self._by_key[key].remove(file)
            if not self._by_key[key]:
                del self._by_key[key]
                gone.append(key)
        return gone

    def has_file(self, file: StoredFile) -> bool:
        """Whether just this file is known."""
        return self._files.get(file.name) is file

    def has(self, key: bytes) -> bool:
        """Whether a file has this block."""
        return key in self._by_key

    def reach(self, keys: Sequence[bytes], first: int) -> int:
        """Up to which block there are files, without a gap, from block `first` on of a sequence with these `keys`."""
        end = first
        while end < len(keys) and keys[end] in self._by_key:
            end += 1
        return end

    def furthest(self, keys: Sequence[bytes], first: int, end: int) -> tuple[StoredFile, int] | None:
        """Of the files with block `first` of a sequence, the one with the most blocks from there on, up to `end`, and the
        block up to which it has them. None if there is no such file."""
        files = self._by_key.get(keys[first], ())
        ends = [(file, _common(file, keys, first, end)) for file in files]
        return max(ends, key=lambda pair: pair[1], default=None)

    def up_to(self, first: int, keys: Sequence[bytes]) -> Iterator[StoredFile]:
        """The files with the blocks from `first` on of a sequence with these `keys`, the last ones first."""
        end = len(keys)
        while end > first:
            files = self._by_key.get(keys[end - 1])
            if files:
                yield files[0]
            end = files[0].first if files else end - 1


def _common(file: StoredFile, keys: Sequence[bytes], first: int, end: int) -> int:
    """Up to which block a file with block `first` goes on like the sequence."""
    until = first
    while until < min(end, file.end) and file.keys[until - file.first] == keys[until]:
        until += 1
    return until
