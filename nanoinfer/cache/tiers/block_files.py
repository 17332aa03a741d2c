"""BlockFiles: K/V that outlives the process, one file for each block of tokens.

    cache_dir / fingerprint of all that K/V depends on beside tokens / digest of the tokens .safetensors

Any number of processes may share a `cache_dir`: a file gets its name when all of it is written, and never changes. A name
only finds a file; what the file says of itself decides whether it is the right one. The time of modification is that of the
last use. As ssh does it with its keys, folders that another user could write to are refused: whoever can write a file can
also write a checksum that fits.
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

from nanoinfer.cache.tiers.kv_file import pack, unpack
from nanoinfer.cache.tiers.tier_blocks import TierBlocks

logger = logging.getLogger("nanoinfer.cache")

ENDING = ".safetensors"
UNFINISHED = ".unfinished"
ABANDONED_S = 600.0  # a file that is unfinished for so long is one of a process that was killed
_FOLDER = re.compile(r"[0-9a-f]{32}")
_NAME = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class BlockKV:
    """The K/V of one block, uint8 `[block_size, token_bytes]`, and what its file says besides.

    `tokens`: all up to the block's end. `path`: the names of this block and of those before it, the last one first.
    """

    name: str
    fields: Mapping[str, str]
    tokens: np.ndarray
    kv: np.ndarray
    path: Sequence[str]


class BlockFiles:
    """The files with one fingerprint (hexadecimal digits). `max_bytes` bounds all files of `cache_dir` together, also those
    with other fingerprints.

    `sizes`: the files that are known, by name, in bytes; `misses`: how many could not be used; `lost`: how often something
    was not written. One thread looks, writes and tells, another may read; whatever is wrong with a file or the disk is a
    miss, or not written, and a line in the log. ValueError for a folder that cannot be used.
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
        for name in found.keys() - self.sizes.keys() - self._refused:
            self._note(name, found[name])

    def tell(self, sink: TierBlocks) -> None:
        """Tell `sink` of all blocks, and from now on which come and go. The beginning of every file is read."""
        self._sink = sink
        for name in list(self.sizes):
            self._note(name, self.sizes[name])

    def read(self, name: str, fields: Mapping[str, str], tokens: np.ndarray) -> np.ndarray | None:
        """The K/V of the last block of `tokens`, uint8 `[block_size, token_bytes]`; None unless all is as it should be."""
        try:
            theirs, of, kv = unpack(self._path(name).read_bytes())
            if theirs != self._described(fields) or not np.array_equal(of, tokens) or kv.shape != self._shape:
                raise ValueError("is not the file that its name says")
            return kv
        except FileNotFoundError:
            self._forget([name])  # another process has made room
        except (OSError, ValueError) as error:
            self.misses += 1
            self._refused.add(name)
            self._forget([name])
            logger.warning("files of K/V: %s is not used: %s", name, error)
            if isinstance(error, ValueError):
                with suppress(OSError):
                    self._path(name).unlink()
        return None

    def write(self, blocks: Sequence[BlockKV]) -> None:
        """Write blocks that are not in files yet, and note that they and those before them are used now."""
        new = {block.name: block for block in blocks if block.name not in self.sizes}
        data = {name: pack(self._described(each.fields), each.tokens, each.kv) for name, each in new.items()}
        try:
            room = self._make_room(sum(map(len, data.values())))
            for name, content in data.items():
                room -= len(content)
                if room < 0:
                    raise OSError("cache_dir_max_bytes leaves no room for it")
                self._write_file(name, content)
                self._refused.discard(name)
                self._note(name, len(content), new[name])
                self._is_failing = False
        except OSError as error:
            self.lost += 1
            self._complain("not all is written", error)
        used = dict[str, None]()
        for block in blocks:
            for name in block.path:  # what begins a sequence last, because it is of use without the rest
                used.pop(name, None)
                used[name] = None
        self.touch(used)

    def touch(self, names: Iterable[str]) -> None:
        """Note that files are used now, the last ones last."""
        for name in names:
            if name in self.sizes:
                self._last_use = max(self._last_use + 1, time.time_ns())
                with suppress(OSError):  # it is gone, or the disk is read-only
                    os.utime(self._path(name), ns=(self._last_use, self._last_use))

    # --- how it works ------------------------------------------------------------------------------------------------

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{ENDING}"

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

    def _note(self, name: str, size: int, block: BlockKV | None = None) -> None:
        """A file is there; if it was just written, it is that of `block`."""
        self.sizes[name] = size
        if self._sink is None:
            return
        if block is not None:
            fields, tokens = block.fields, block.tokens
        else:
            try:
                with safe_open(self._path(name), "np") as file:
                    fields, tokens = file.metadata() or {}, file.get_tensor("tokens")
            except (OSError, SafetensorError):
                return  # whoever reads it will find out, too
        if namespace := fields.get("router_namespace"):
            number = len(tokens) // self._size - 1
            self._sink.store(tokens.astype(np.int64), int(namespace), (None, None), [(name, number)])

    def _forget(self, names: Iterable[str]) -> None:
        gone = [name for name in list(names) if self.sizes.pop(name, None) is not None]
        if gone and self._sink is not None:
            self._sink.remove(gone)

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
