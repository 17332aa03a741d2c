"""BlockFiles: K/V that outlives the process, one file for each run of blocks that was written at once.

    cache_dir / fingerprint of all that K/V depends on beside tokens / digest of the tokens - number of blocks .safetensors

A file for each block would be 20 times the work for the same bytes: making one takes longer than to fill it. Any number of
processes may share a `cache_dir`: a file gets its name when all of it is written, and never changes. What the file says of
itself decides whether it is the right one. The time of modification is that of the last use. As ssh does it with its keys,
folders that another user could write to are refused: whoever can write a file can also write a checksum that fits.
"""

import logging
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from nanoinfer.cache.tiers.block_index import block_digests
from nanoinfer.cache.tiers.kv_file import pack, unpack
from nanoinfer.cache.tiers.tier_blocks import TierBlocks

logger = logging.getLogger("nanoinfer.cache")

ENDING = ".safetensors"
UNFINISHED = ".unfinished"
ABANDONED_S = 600.0  # a file that is unfinished for so long is one of a process that was killed
_FOLDER = re.compile(r"[0-9a-f]{32}")
_NAME = re.compile(r"[0-9a-f]{64}-[0-9]+")


@dataclass(frozen=True, eq=False)
class Run:
    """The K/V of the last blocks of `tokens`, uint8 `[k, token_bytes]`, and what their file says besides.

    `names`: of all blocks of `tokens`, which are those of a sequence from its beginning; `first`: how many of them come
    before the K/V.
    """

    names: Sequence[str]
    first: int
    fields: Mapping[str, str]
    tokens: np.ndarray
    kv: np.ndarray


class BlockFiles:
    """The files with one fingerprint (hexadecimal digits). `max_bytes` bounds all files of `cache_dir` together, also those
    with other fingerprints.

    `sizes`: the files that are known, by name, in bytes; `file_of`: in which of them a block is, by the block's name.
    `misses`: how many files could not be used; `lost`: how often something was not written. One thread looks, writes and
    tells, another may read; whatever is wrong with a file or the disk is a miss, or not written, and a line in the log.
    ValueError for a folder that cannot be used.
    """

    def __init__(
        self,
        cache_dir: str | Path,
        fingerprint: str,
        block_size: int,
        token_bytes: int,
        max_bytes: int | None = None,
    ):
        self._root = private_folder(cache_dir)
        self._folder = self._root / fingerprint[:32]
        with suppress(OSError):  # a read-only disk: there is nothing to find
            self._folder.mkdir(mode=0o700, exist_ok=True)
        self._fingerprint, self._size, self._shape = fingerprint, block_size, (block_size, token_bytes)
        self.max_bytes = max_bytes
        self.sizes: dict[str, int] = {}
        self.file_of: dict[str, str] = {}
        self._blocks: dict[str, Sequence[str]] = {}  # of each file
        self.misses = self.lost = 0
        self._refused = set[str]()  # damaged files that could not be removed
        self._last_use = 0  # ns
        self._is_failing = False  # one line in the log is enough until something has been written again
        self._sink: TierBlocks | None = None

    def look(self) -> None:
        """Look for files that other processes have written or removed, and for room if there is too little."""
        try:
            self._make_room(0)
            found = dict(self._own_files())
        except OSError as error:
            self._complain("the folder is not looked into", error)
            return
        self._forget(self.sizes.keys() - found.keys())
        for file in found.keys() - self.sizes.keys() - self._refused:
            self._find(file, found[file])

    def attach(self, sink: TierBlocks) -> None:
        """Report all blocks to `sink`, and from now on which come and go. The beginning of every file is read."""
        self._sink = sink
        for file, size in list(self.sizes.items()):
            self._find(file, size)

    def read(
        self, names: Sequence[str], number: int, fields: Mapping[str, str], tokens: np.ndarray
    ) -> np.ndarray | None:
        """The K/V of the blocks of `tokens` from this number on, as far as one file has it: uint8 `[k, token_bytes]`, at
        least a block; None unless all is as it should be. `names`: of all blocks of `tokens`."""
        if (file := self.file_of.get(names[number])) is None:
            return None
        try:
            theirs, of, kv = unpack(self._path(file).read_bytes())
            start, begin, end = number * self._size, len(of) - len(kv), min(len(of), len(names) * self._size)
            differ = np.flatnonzero(of[:end] != tokens[:end])  # another text may go on otherwise
            end = int(differ[0] if differ.size else end) // self._size * self._size
            if theirs != self._described(fields) or not begin <= start < end or kv.shape[1:] != self._shape[1:]:
                raise ValueError("is not the file that its name says")
            return kv[start - begin : end - begin]
        except (OSError, ValueError) as error:
            self._refuse(file, error)
        return None

    def write(self, run: Run) -> None:
        """Write a file, unless all its blocks are in files already, and note that they and those before are used now."""
        if not all(name in self.file_of for name in run.names[run.first :]):
            file = f"{run.names[-1]}-{len(run.names) - run.first}"
            content = pack(self._described(run.fields), run.tokens, run.kv)
            try:
                if self._make_room(len(content)) < len(content):
                    raise OSError("cache_dir_max_bytes leaves no room for it")
                self._write_file(file, content)
                self._refused.discard(file)
                self._note(file, len(content), run)
                self._is_failing = False
            except OSError as error:
                self.lost += 1
                self._complain("a file is not written", error)
        self.touch(reversed(run.names))

    def touch(self, names: Iterable[str]) -> None:
        """Note that the files with these blocks are used now, that of the last one last. What begins a sequence should be
        last, because it is of use without the rest."""
        files = [file for name in names if (file := self.file_of.get(name))]
        for file in reversed(dict.fromkeys(reversed(files))):
            self._last_use = max(self._last_use + 1, time.time_ns())
            with suppress(OSError):  # it is gone, or the disk is read-only
                os.utime(self._path(file), ns=(self._last_use, self._last_use))

    # --- how it works ------------------------------------------------------------------------------------------------

    def _path(self, file: str) -> Path:
        return self._folder / f"{file}{ENDING}"

    def _described(self, fields: Mapping[str, str]) -> dict[str, str]:
        return {**fields, "fingerprint": self._fingerprint}

    def _write_file(self, name: str, content: bytes) -> None:
        unfinished = self._folder / f"{name}-{os.getpid()}{UNFINISHED}"
        try:
            unfinished.write_bytes(content)
            unfinished.replace(self._path(name))
        except BaseException:
            with suppress(OSError):
                unfinished.unlink()
            raise

    def _own_files(self) -> Iterator[tuple[str, int]]:
        """Names and sizes. What others left unfinished long ago is removed."""
        if not self._folder.exists():
            return
        for entry in os.scandir(self._folder):
            name, ending = os.path.splitext(entry.name)
            with suppress(FileNotFoundError):
                if ending == ENDING and _NAME.fullmatch(name):
                    yield name, entry.stat().st_size
                elif ending == UNFINISHED and time.time() - entry.stat().st_mtime > ABANDONED_S:
                    os.unlink(entry)

    def _make_room(self, num_bytes: int) -> float:
        """Remove files that were used longest ago until there is room for so many bytes; how much there is."""
        if self.max_bytes is None:
            return float("inf")
        files = list[tuple[int, int, Path]]()
        for folder in self._root.iterdir():
            if _FOLDER.fullmatch(folder.name):
                for entry in os.scandir(folder):
                    if entry.name.endswith((ENDING, UNFINISHED)):
                        with suppress(FileNotFoundError):
                            status = entry.stat()
                            files.append((status.st_mtime_ns, status.st_size, Path(entry.path)))
        room, gone = self.max_bytes - sum(size for _, size, _ in files), list[str]()
        for _, size, path in sorted(files):
            if room >= min(num_bytes, self.max_bytes):
                break
            try:
                path.unlink(missing_ok=True)
            except OSError:
                continue
            room += size
            if path.parent == self._folder:
                gone.append(path.stem)
        self._forget(gone)
        return room

    def _find(self, file: str, size: int) -> None:
        """Note a file that is there, and the blocks that it says it has."""
        try:
            with safe_open(self._path(file), "np") as opened:
                fields, tokens = opened.metadata(), opened.get_tensor("tokens").astype(np.int64)
                rows = opened.get_slice("kv").get_shape()[0]
            if len(tokens) % self._size or rows % self._size or not 0 < rows <= len(tokens):
                raise ValueError("has no whole blocks")
            names = [digest.hex() for digest in block_digests(bytes.fromhex(fields["namespace"]), tokens, self._size)]
            self._note(file, size, Run(names, len(names) - rows // self._size, fields, tokens, np.empty(0)))
        except (OSError, ValueError, LookupError, TypeError, SafetensorError) as error:
            self._refuse(file, error)

    def _note(self, file: str, size: int, run: Run) -> None:
        self._blocks[file], self.sizes[file] = run.names[run.first :], size
        self.file_of.update(dict.fromkeys(run.names[run.first :], file))
        if self._sink is not None and (namespace := run.fields.get("router_namespace")):
            blocks = [(name, number) for number, name in enumerate(run.names)][run.first :]
            self._sink.store(run.tokens, int(namespace), (None, None), blocks)

    def _forget(self, files: Iterable[str]) -> None:
        gone = list[str]()
        for file in list(files):
            if self.sizes.pop(file, None) is not None:  # another file may have some of its blocks, too
                gone += [name for name in self._blocks.pop(file) if self.file_of.get(name) == file]
        for name in gone:
            self.file_of.pop(name, None)
        if gone and self._sink is not None:
            self._sink.remove(gone)

    def _refuse(self, file: str, error: Exception) -> None:
        """A file cannot be used. If it is damaged, it is removed."""
        self._forget([file])
        if isinstance(error, FileNotFoundError):
            return  # another process has made room
        self.misses += 1
        self._refused.add(file)
        logger.warning("files of K/V: %s is not used: %s", file, error)
        if not isinstance(error, OSError):
            with suppress(OSError):
                self._path(file).unlink()

    def _complain(self, what: str, error: OSError) -> None:
        if not self._is_failing:
            logger.warning("files of K/V: %s: %s", what, error)
        self._is_failing = True


def private_folder(path: str | Path) -> Path:
    """The folder `path`. If it is not there, it is made first, and so are those above it, for their owner only (0700).

    ValueError if that fails, or if another user could change the folder or put another one in its place: it and all
    folders above it must belong to this user or to root, and neither group nor others may write to them (above it, they may
    if the folder is sticky, as /tmp is).
    """
    made = Path(os.path.expanduser(path))
    try:
        for each in (*reversed(made.parents), made):
            if not each.exists():
                each.mkdir(mode=0o700, exist_ok=True)
        os.listdir(made)
    except OSError as error:
        raise ValueError(f"cache_dir={str(path)!r}: is no folder and cannot be made one: {error.strerror}") from error
    real = made.resolve()
    for folder in (real, *real.parents):
        status = folder.stat()
        is_ours = status.st_uid in (0, os.geteuid())
        others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        is_sticky = folder != real and status.st_mode & stat.S_ISVTX
        if not is_ours or (others_write and not is_sticky):
            raise ValueError(f"cache_dir={str(path)!r}: other users may write to {folder}, and could plant K/V there")
    return real
