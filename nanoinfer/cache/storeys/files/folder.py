"""Folder: reads and writes whole files of K/V in a folder, and keeps it within its bound; whose folders and files are used.

As ssh does it with its keys: what another user could have changed is not read. What a file holds is checked in other ways,
too. But whoever can write a file can also write a checksum that fits, and K/V made by somebody else can make a model say
anything.
"""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from nanoinfer.cache.storeys.files.bound import (
    Bound,
    LastUse,
    finished_name,
    is_finished,
    is_unfinished,
    unfinished_name,
)
from nanoinfer.cache.storeys.files.file_format import CHECKSUM_BYTES, FileFormat, Part, checksum
from nanoinfer.cache.storeys.files.file_operations import FileOperations

FIRST_READ = 1 << 15  # the header of nearly all files, and often the tokens
ONE_READ = 8 << 20

MOST_FILE_BYTES = 1 << 30

Identity = tuple[int, int]  # inode and size
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Refused(Exception):
    """A file cannot be used, or not be written; the message says why. `damaged`: it is not what its name says."""

    def __init__(self, why: str, damaged: bool = False):
        super().__init__(why)
        self.damaged = damaged


class Folder:
    """Files of one format in a folder that several processes and other formats may share. For any thread.

    A file gets its name when all of it is written, so a process that is killed leaves no half of one, but a file with
    another name, which the next one to look removes. Nothing waits until the disk has it (no fsync): what a power cut tears
    has a wrong checksum, and is as good as not there.
    """

    def __init__(self, operations: FileOperations, file_format: FileFormat, max_bytes: int | None = None):
        self.operations, self.format = operations, file_format
        self.last_use = LastUse(operations)
        self._bound = None if max_bytes is None else Bound(operations, self.last_use, max_bytes)

    def name(self, last_key: bytes, start: int) -> str:
        """The name of the file with a sequence's tokens from `start` to a block's end. Equal ones have the same name."""
        content = checksum(last_key, start.to_bytes(8, "little")).hex()
        return finished_name(self.format.fingerprint, content)

    def mine(self, names: Iterable[str]) -> list[str]:
        """Those that are names of this format's files."""
        return [name for name in names if is_finished(name, self.format.fingerprint)]

    # --- reading ---------------------------------------------------------------------------------------------------

    def describe(self, name: str) -> tuple[Part, np.ndarray, Identity, int]:
        """What a file says that it has: its part, all tokens up to the part's end int32, its identity, and its size.

        Its K/V is not looked at. Raises Refused, or OSError.
        """
        file = self.operations.open(name)
        try:
            status = self._checked(file)
            begin = self._read(file, 0, min(FIRST_READ, status.st_size))
            header = self.format.header_bytes(begin[:8].tobytes())
            if header is None or 8 + header > status.st_size:
                raise Refused("is no file of K/V", damaged=True)
            head = self._more(file, begin, 0, 8 + header).tobytes()
            part = self.format.part_of(head, status.st_size)
            if part is None:
                raise Refused("is no file of this K/V, or has been cut", damaged=True)
            place = self.format.places(part)["tokens"]
            tokens = self._more(file, begin, place.start, place.stop)
            return part, tokens.view(np.int32), _identity(status), status.st_size
        finally:
            self.operations.close(file)

    def read(self, name: str, part: Part, tokens: np.ndarray) -> np.ndarray:
        """The K/V in a file that is for `part`, uint8 [n, token_bytes], once all of it has been compared.

        `tokens` int32: those of the sequence that it is wanted for, as far as it is, at most to `part.end`; the file must
        have the same. Raises Refused, or OSError.
        """
        file = self.operations.open(name)
        try:
            head, places = self.format.head(part), self.format.places(part)
            size, status = places["checksum"].stop, self._checked(file)
            if status.st_size != size:
                raise Refused(f"has {status.st_size} bytes, must have {size}", damaged=True)
            content = self._read(file, 0, size)
        finally:
            self.operations.close(file)
        if content[: len(head)].tobytes() != head:
            raise Refused("has another header", damaged=True)
        if checksum(content[:-CHECKSUM_BYTES].data) != content[-CHECKSUM_BYTES:].tobytes():
            raise Refused("has another checksum", damaged=True)
        if not np.array_equal(content[places["tokens"]].view(np.int32)[: len(tokens)], tokens):
            raise Refused("has other tokens")
        return content[places["kv"]].reshape(-1, self.format.token_bytes)

    def _checked(self, file: int) -> os.stat_result:
        status = self.operations.status_of(file)
        if not stat.S_ISREG(status.st_mode):
            raise Refused("is no regular file")
        if status.st_size > MOST_FILE_BYTES:
            raise Refused(f"has {status.st_size} bytes, may have {MOST_FILE_BYTES}")
        if (why := who_could_change(status)) is not None:
            raise Refused(why)
        return status

    def _read(self, file: int, begin: int, end: int) -> np.ndarray:
        """Bytes `begin..end` of a file, uint8. Refused if it ends before."""
        content = np.empty(end - begin, dtype=np.uint8)
        done = 0
        while done < len(content):
            count = self.operations.read(file, content[done : done + ONE_READ].data, begin + done)
            if count <= 0:
                raise Refused(f"ends after {begin + done} bytes, must have {end}", damaged=True)
            done += count
        return content

    def _more(self, file: int, known: np.ndarray, begin: int, end: int) -> np.ndarray:
        """Bytes `begin..end` of a file of which the first ones are `known`."""
        return known[begin:end].copy() if end <= len(known) else self._read(file, begin, end)

    # --- writing ---------------------------------------------------------------------------------------------------

    def write(self, name: str, part: Part, tokens: np.ndarray, kv: np.ndarray) -> tuple[Identity, int, list[str]]:
        """Write a file; returns its identity, its size, and the files that had to go for it.

        `tokens` int32 `[part.end]`, `kv` uint8 [n, token_bytes]. Raises Refused or OSError, and then the file is not there.
        """
        pieces = [memoryview(self.format.head(part)), _bytes(tokens), _bytes(kv)]
        pieces.append(memoryview(checksum(*pieces)))
        size = sum(map(len, pieces))
        limit = MOST_FILE_BYTES if self._bound is None else min(MOST_FILE_BYTES, self._bound.max_bytes)
        if size > limit:
            raise Refused(f"it would have {size} bytes, must be at most {limit}")
        unfinished = unfinished_name(os.urandom(16))
        file = self.operations.create(unfinished, size)
        try:
            try:
                gone, fits = ([], True) if self._bound is None else self._bound.make_room()
                if not fits:
                    raise Refused("other processes are writing so much that there is no room for it")
                self._write(file, pieces)
                self.last_use.now([unfinished])
                self.operations.rename(unfinished, name)
                identity = _identity(self.operations.status_of(file))
            finally:
                self.operations.close(file)
        except BaseException:
            self.remove(unfinished)
            raise
        return identity, size, gone

    def _write(self, file: int, buffers: list[memoryview]) -> None:
        while buffers:
            count = self.operations.write(file, buffers)
            if count <= 0:
                raise Refused("the disk takes no more")
            while buffers and count >= len(buffers[0]):
                count -= len(buffers.pop(0))
            buffers[:1] = [buffer[count:] for buffer in buffers[:1]]

    def keep_bound(self) -> list[str]:
        """Remove files until the folder is within its bound, as far as that is possible; the names of those that are gone.
        Raises OSError."""
        return [] if self._bound is None else self._bound.make_room()[0]

    def remove_unfinished(self, names: Iterable[str]) -> list[str]:
        """Remove what processes left that were killed while they wrote; the names of what was removed."""
        removed = []
        for name in names:
            if not is_unfinished(name):
                continue
            try:
                file = self.operations.open(name)
            except OSError:
                continue  # it has been finished, or is not ours
            try:
                if not self.operations.is_locked(file):
                    self.remove(name)
                    removed.append(name)
            except OSError:
                pass
            finally:
                self.operations.close(file)
        return removed

    def remove(self, name: str) -> bool:
        """Remove a file; whether it is not there any more."""
        try:
            self.operations.remove(name)
        except FileNotFoundError:
            return True  # another process was faster
        except OSError:
            return False
        return True


def _identity(status: os.stat_result) -> Identity:
    """Another file of the same name has another one."""
    return status.st_ino, status.st_size


def _bytes(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def open_folder(path: str | Path) -> int:
    """Open the folder `path`. If it is not there, it is made first, and so are those above it, for their owner only (0700).

    ValueError if that fails, or if another user could change the folder or put another one in its place: it and all
    folders above it must belong to this user or to root, and neither group nor others may write to them (above it, they may
    if the folder is sticky, as /tmp is).
    """
    path = Path(os.path.expanduser(path))
    try:
        for each in (*reversed(path.parents), path):
            if not each.exists():
                each.mkdir(mode=0o700, exist_ok=True)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ValueError(f"cache_dir={str(path)!r}: is no folder and cannot be made one: {error.strerror}") from error
    try:
        _check_path(path, os.fstat(folder))
    except BaseException:
        os.close(folder)
        raise
    return folder


def who_could_change(status: os.stat_result) -> str | None:
    """Who else, in words, could have written a file or folder; None if nobody else could."""
    if status.st_uid not in (0, os.geteuid()):
        return f"belongs to user {status.st_uid}, not to {os.geteuid()}"
    if status.st_mode & OTHERS_MAY_WRITE:
        return f"can be written by others (mode {stat.S_IMODE(status.st_mode):o})"
    return None


def _check_path(path: Path, opened: os.stat_result) -> None:
    real = Path(os.path.realpath(path))
    for folder in (real, *real.parents):
        status = opened if folder == real else os.stat(folder)
        why = who_could_change(status)
        if why is not None and folder != real and status.st_mode & stat.S_ISVTX and status.st_uid in (0, os.geteuid()):
            why = None  # sticky: others may add to it, but not take away what is there
        if why is not None:
            raise ValueError(
                f"cache_dir={str(path)!r}: {folder} {why}, so that others could plant K/V there; choose another folder, "
                "or change that"
            )
