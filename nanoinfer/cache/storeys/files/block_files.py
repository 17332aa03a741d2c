"""BlockFiles: finds, reads and writes blocks of tokens in the files of a folder. Whoever calls it waits for the disk."""

import logging
import os
import threading
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from nanoinfer.cache.storeys.files.file_format import Part
from nanoinfer.cache.storeys.files.folder import Folder, Identity, Refused
from nanoinfer.cache.storeys.files.keys import block_keys
from nanoinfer.cache.storeys.storey_blocks import FileBlocks

logger = logging.getLogger("nanoinfer.cache")


@dataclass(frozen=True, eq=False)
class StoredFile:
    """A file with the blocks `first..end` of a sequence, whose keys are `keys` (see keys.py). `size` in bytes; `identity`:
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


@dataclass(frozen=True)
class FileStats:
    """What a store has (`bytes`: of its files) and has done. `misses`: files that could not be used; `lost`: runs that were
    not written."""

    files: int = 0
    blocks: int = 0
    bytes: int = 0
    written_files: int = 0
    misses: int = 0
    lost: int = 0


class BlockFiles:
    """Blocks of `block_size` tokens in files with at most `blocks_per_file` each. For any thread.

    `tokens` are int32 and those of a sequence from its beginning; `start` and `end` are multiples of `block_size`. When
    something is wrong with a file or the disk, that is a miss, or not written, and a line in the log. Nothing is raised.
    """

    def __init__(self, folder: Folder, block_size: int, blocks_per_file: int):
        self._folder, self._size, self._blocks_per_file = folder, block_size, blocks_per_file
        self._lock = threading.Lock()  # of what follows; never held while a file is worked on
        self._index, self._refused = FileIndex(), dict[str, Identity | None]()
        self._stats, self._complained = FileStats(), set[str]()
        self._listener: FileBlocks | None = None

    def stats(self) -> FileStats:
        """What there is, and what has been done."""
        with self._lock:
            return replace(
                self._stats, files=len(self._index), blocks=self._index.num_blocks, bytes=self._index.num_bytes
            )

    def has(self, keys: Sequence[bytes]) -> list[bool]:
        """Which of the blocks with these keys (see keys.py) are in files."""
        with self._lock:
            return [self._index.has(key) for key in keys]

    def reach(self, namespace: bytes, tokens: np.ndarray, start: int) -> int:
        """Up to which token there are files, without a gap, from `start` on. It looks into memory only."""
        keys = block_keys(namespace, tokens, self._size)
        with self._lock:
            return max(start, self._index.reach(keys, start // self._size) * self._size)

    def read(self, namespace: bytes, tokens: np.ndarray, start: int, end: int) -> np.ndarray | None:
        """The K/V of tokens `start..end`, or of the first of them, uint8 [n, token_bytes]; None: of none."""
        size = self._size
        end = min(end, len(tokens) - len(tokens) % size)
        if end <= start:
            return None
        keys, done = block_keys(namespace, tokens[:end], size), start
        kv = np.empty((end - start, self._folder.format.token_bytes), dtype=np.uint8)
        while done < end:
            with self._lock:
                furthest = self._index.furthest(keys, done // size, end // size)
            if furthest is None:
                break
            file, until = furthest
            part = Part(namespace, file.first * size, file.end * size)
            try:
                found = self._folder.read(file.name, part, tokens[: until * size])
            except (Refused, OSError) as error:
                self._miss(file.name, file.identity, error)
                continue  # another file may have this block, too
            kv[done - start : until * size - start] = found[done - part.start : until * size - part.start]
            done = until * size
        if done == start:
            return None
        self._touch(keys, done // size)
        return kv[: done - start]

    def write(self, namespace: bytes, tokens: np.ndarray, start: int, kv: np.ndarray) -> int | None:
        """Write `kv`, that of `tokens` from `start` on, without blocks at either end that are in files already. Returns how
        many bytes were written, None if it failed."""
        size = self._size
        keys = block_keys(namespace, tokens, size)
        first, end = start // size, len(keys)
        with self._lock:
            while first < end and self._index.has(keys[first]):
                first += 1
            while first < end and self._index.has(keys[end - 1]):
                end -= 1
        written = 0
        for part in self._parts(namespace, first, end):
            begin, until = part.start // size, part.end // size
            name = self._folder.name(keys[until - 1], part.start)
            piece = kv[part.start - start : part.end - start]
            try:
                identity, num_bytes, gone = self._folder.write(name, part, tokens[: part.end], piece)
            except (Refused, OSError) as error:
                self.count_lost()
                self._complain(f"a file is not written: {_words(error)}")
                return None
            self._forget(gone)
            self._add(StoredFile(name, num_bytes, identity, begin, keys[begin:until]), namespace, tokens[: part.end])
            with self._lock:
                self._refused.pop(name, None)
                self._complained.clear()
            self._count(written_files=1)
            written += num_bytes
        self._touch(keys, first)  # or what this continues would go first, and this would be of no use
        return written

    def size_of(self, namespace: bytes, keys: Sequence[bytes], first: int, counted: Set[str]) -> tuple[int, set[str]]:
        """See FileStore."""
        with self._lock:
            files = [file for file in self._index.up_to(first, keys) if file.name not in counted]
            there = [self._index.has(key) for key in keys[first:]]
        missing, size = [i for i, is_there in enumerate(there, start=first) if not is_there], 0
        for i, block in enumerate(missing):
            if not i or missing[i - 1] != block - 1:
                begin = block
            if i + 1 == len(missing) or missing[i + 1] != block + 1:
                parts = self._parts(namespace, begin, block + 1)
                size += sum(self._folder.format.places(part)["checksum"].stop for part in parts)
        return size + sum(file.size for file in files), {file.name for file in files}

    def note_use(self, parts: Sequence[tuple[Sequence[bytes], int]]) -> None:
        """See FileStore."""
        names = dict[str, None]()
        with self._lock:
            for keys, first in parts:
                for file in self._index.up_to(first, keys):
                    names.pop(file.name, None)
                    names[file.name] = None  # last
        self._folder.last_use.now(names)

    def first_look(self) -> None:
        """`look`, and remove what is beyond the folder's bound: it may have been higher when the files were written."""
        self.look()
        try:
            gone = self._folder.keep_bound()
        except OSError as error:
            self._complain(f"the folder is not kept within its bound: {_words(error)}")
            return
        self._forget(gone)

    def tell(self, listener: FileBlocks) -> None:
        """Tell `listener` of all blocks, and from now on which come and go. The beginning of every file is read."""
        with self._lock:
            self._listener, files = listener, self._index.files
        for file in files:
            try:
                part, tokens, _, _ = self._folder.describe(file.name)
            except (Refused, OSError) as error:
                self._miss(file.name, file.identity, error)
                continue
            with self._lock:
                if self._index.has_file(file):
                    listener.found(part.namespace, tokens, file.first, file.keys)
        listener.tell()

    def look(self) -> None:
        """Look into the folder for files that other processes have written or removed."""
        with self._lock:
            before, refused = self._index.names, dict(self._refused)
        try:
            names = self._folder.operations.names()
        except OSError as error:
            self._complain(f"the folder is not looked into: {_words(error)}")
            return
        self._folder.remove_unfinished(names)
        mine = set(self._folder.mine(names))
        self._forget(before - mine)
        with self._lock:
            for name in refused.keys() - mine:
                self._refused.pop(name, None)
        for name in sorted(mine - before):
            identity = None
            try:
                status = self._folder.operations.status(name)
                identity = status.st_ino, status.st_size
                if name in refused and refused[name] == identity:
                    continue
                self._folder.last_use.saw(status)
                self._found(name)
            except (Refused, OSError) as error:
                self._miss(name, identity, error)

    def _parts(self, namespace: bytes, first: int, end: int) -> Iterator[Part]:
        """What each file has if the blocks `first..end` are written."""
        for begin in range(first, end, self._blocks_per_file):
            yield Part(namespace, begin * self._size, min(end, begin + self._blocks_per_file) * self._size)

    def _found(self, name: str) -> None:
        part, tokens, identity, num_bytes = self._folder.describe(name)
        if part.start % self._size or part.end % self._size:
            raise Refused("has no whole blocks", damaged=True)
        keys = block_keys(part.namespace, tokens, self._size)
        if name != self._folder.name(keys[-1], part.start):
            raise Refused("has other tokens than its name says", damaged=True)
        first = part.start // self._size
        self._add(StoredFile(name, num_bytes, identity, first, keys[first:]), part.namespace, tokens)

    def _add(self, file: StoredFile, namespace: bytes, tokens: np.ndarray) -> None:
        with self._lock:
            self._index.add(file)
            if (listener := self._listener) is not None:
                listener.found(namespace, tokens, file.first, file.keys)
        if listener is not None:
            listener.tell()  # without the lock, because a step may begin

    def _forget(self, names: Iterable[str]) -> None:
        with self._lock:
            gone = [key for name in names for key in self._index.remove(name)]
            if (listener := self._listener) is not None and gone:
                listener.lost(gone)
        if listener is not None and gone:
            listener.tell()

    def _touch(self, keys: Sequence[bytes], end: int) -> None:
        """Note that the files with the blocks before `end` are used now: the first block last, so that it goes last."""
        with self._lock:
            names = [file.name for file in self._index.up_to(0, keys[:end])]
        self._folder.last_use.now(names)

    def _miss(self, name: str, identity: Identity | None, error: Refused | OSError) -> None:
        self._forget([name])
        with self._lock:
            self._refused[name] = identity
        self._count(misses=1)
        removed = isinstance(error, Refused) and error.damaged and self._folder.remove(name)
        level = logging.INFO if isinstance(error, FileNotFoundError) else logging.WARNING
        logger.log(level, "files of K/V: %s is not used: %s%s", name, _words(error), "; removed" if removed else "")

    def _complain(self, what: str) -> None:
        """A line in the log, but only one until something has been written again."""
        with self._lock:
            if what in self._complained:
                return
            self._complained.add(what)
        logger.warning("files of K/V: %s", what)

    def _count(self, **numbers: int) -> None:
        with self._lock:
            self._stats = replace(
                self._stats, **{name: getattr(self._stats, name) + by for name, by in numbers.items()}
            )

    def count_lost(self) -> None:
        """Note that a run of blocks will not be written."""
        self._count(lost=1)


def _words(error: Refused | OSError) -> str:
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno is not None else str(error)
