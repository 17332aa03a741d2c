"""FileStore: K/V of blocks of tokens in files, for as many processes and for as long as one likes.

    offer ──► writer's thread ──► Folder.write ──► safetensors files ──► Folder.read ──► reader's thread ──► fetch
                                        └──── FileIndex, in memory ────┘ ──► match

What comes back has the bytes that were written for the same tokens, or does not come back. A file that is damaged, cut,
gone or not safe to read, and a disk that is full, read-only or stalled, are a miss and a line in the log. A file has a run
of blocks: opening one file for each block would take longer than reading them.
"""

import logging
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import numpy as np

from nanoinfer.cache.storeys.files.block_files import BlockFiles, FileStats
from nanoinfer.cache.storeys.files.file_format import VERSION, FileFormat
from nanoinfer.cache.storeys.files.file_operations import FileOperations
from nanoinfer.cache.storeys.files.folder import Folder, open_folder
from nanoinfer.cache.storeys.files.keys import MOST_BYTES, Field, as_tokens, block_keys, fingerprint
from nanoinfer.cache.storeys.files.worker import Pace, Worker
from nanoinfer.cache.storeys.storey_blocks import FileBlocks
from nanoinfer.version import __version__

logger = logging.getLogger("nanoinfer.cache")

FILE_BYTES = 8 << 20  # of K/V per file, at most: little to read for a part of it, and enough to read at full speed
QUEUED_BYTES = 256 << 20
BYTES_PER_SECOND = 100e6  # many times what a model computes, and little of a core
LOOK_AGAIN_S = 1.0
STALLED_S = 2.0


class Fetch:
    """K/V on its way from files."""

    def __init__(self, kv: "Future[np.ndarray | None]"):
        self._kv = kv

    @property
    def is_done(self) -> bool:
        """Whether `result` need not wait."""
        return self._kv.done()

    def result(self, timeout: float | None = None) -> np.ndarray | None:
        """As `FileStore.read`; None, too, if it was given up. TimeoutError if it takes more than `timeout` seconds."""
        try:
            return self._kv.result(timeout)
        except CancelledError:
            return None

    def give_up(self) -> None:
        """Do not read it, if that has not begun. Nobody has to wait for it in any case."""
        self._kv.cancel()


class FileStore:
    """K/V in the files of one folder, in blocks of `block_size` tokens. All methods may be called from any thread.

    - `fingerprint_fields`: all that K/V depends on beside tokens and namespace, and what the bytes of a token mean; files
      with others are not found. The store adds what depends on itself: versions, `token_bytes` and `block_size`.
    - `max_bytes`: what all files of the folder may take up together, also those with other fingerprints; None: any size.
    - `token_bytes`: how many bytes the K/V of one token has, which must be all that a slot owns: nothing else comes back.
    - `file_bytes`: how much K/V goes into one file; `queued_bytes`: how much K/V may wait for the writer;
      `bytes_per_second`: how much it writes in a second on average, except for `flush` and `close`; None: as it can.

    `tokens` are always those of a sequence from its beginning; `namespace` is bytes that keep equal tokens apart (see
    keys.py); K/V is uint8 [n, token_bytes]. ValueError for a folder that cannot be used. When it is closed, and in a forked
    process, nothing is found and nothing is written.
    """

    def __init__(
        self,
        folder: str | Path,
        max_bytes: int | None,
        fingerprint_fields: Mapping[str, Field],
        token_bytes: int,
        block_size: int,
        *,
        file_bytes: int = FILE_BYTES,
        queued_bytes: int = QUEUED_BYTES,
        bytes_per_second: float | None = BYTES_PER_SECOND,
        operations: Callable[[int], FileOperations] = FileOperations,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.block_size, self.token_bytes, self.max_bytes, self._clock = block_size, token_bytes, max_bytes, clock
        self._lock, self._offered = threading.Lock(), Counter[bytes]()  # the keys of blocks that are not written yet
        fields: dict[str, Field] = {"format": VERSION, "package": __version__}
        fields |= {"token_bytes": token_bytes, "block_size": block_size}
        self.fingerprint = fingerprint(
            {**{f"engine: {name}": each for name, each in fingerprint_fields.items()}, **fields}
        )
        self._operations = operations(open_folder(folder))
        opened = Folder(self._operations, FileFormat(self.fingerprint, token_bytes), max_bytes)
        per_file = max(1, file_bytes // (block_size * token_bytes))
        self._blocks = BlockFiles(opened, block_size, per_file)
        self._reader = Worker("nanoinfer reads K/V", clock=clock)
        self._writer = Worker("nanoinfer writes K/V", queued_bytes, clock)
        self._pace, self._hurry = Pace(bytes_per_second, clock), threading.Event()
        self._process, self._is_closed = os.getpid(), False
        self._looking, self._looked_at = Future[None](), self._clock()
        _close_folder_in_the_end(self._reader, self._writer, self._operations)
        # Without it, threads and the open folder would be there for ever.
        self._end_later = weakref.finalize(self, _end, self._reader, self._writer)
        self._end_later.atexit = False
        self._reader.put(_job(self._blocks.first_look, self._looking), 0, self._looking.cancel)

    # --- what is there -----------------------------------------------------------------------------------------------

    def match(self, namespace: bytes, tokens: np.ndarray | Sequence[int], start: int = 0) -> int:
        """How many leading tokens of `tokens` are in files if the first `start` are elsewhere: `start`, which must be a
        number of whole blocks, or more.

        It looks into memory only. While one read takes more than `STALLED_S` seconds, nothing matches. What other
        processes write is noticed a moment later (see `refresh`).
        """
        if not self._works() or self._reader.busy_for() > STALLED_S:
            return start
        if self._looking.done() and self._clock() - self._looked_at > LOOK_AGAIN_S:
            self.refresh()
        return self._blocks.reach(namespace, as_tokens(tokens), start)

    def has(self, keys: Sequence[bytes]) -> list[bool]:
        """Which of the blocks with these keys (see keys.py) are in files. It looks into memory only."""
        return self._blocks.has(keys) if self._works() else [False] * len(keys)

    def keeps(self, keys: Sequence[bytes]) -> list[bool]:
        """As `has`, also for blocks that were offered and are not written yet."""
        if not self._works():  # asked without the lock: another thread may have had it when this process was forked
            return [False] * len(keys)
        with self._lock:
            offered = [key in self._offered for key in keys]  # first: what is written meanwhile is in files then
        return [here or there for here, there in zip(offered, self.has(keys), strict=True)]

    def refresh(self) -> "Future[None]":
        """Look, in the reader's thread, for files that other processes have written or removed. Cancelled by `close`."""
        looking = Future[None]()
        if self._works() and self._reader.put(_job(self._blocks.look, looking), 0, looking.cancel):
            self._looking, self._looked_at = looking, self._clock()
        else:
            looking.set_result(None)
        return looking

    def tell(self, listener: FileBlocks) -> "Future[None]":
        """Have the reader's thread tell `listener` of all blocks, and both threads which come and go from then on."""
        told = Future[None]()
        if not self._works() or not self._reader.put(_job(self._blocks.tell, told, listener), 0, told.cancel):
            told.set_result(None)
        return told

    def stats(self) -> FileStats:
        """What there is, and what has been done."""
        if os.getpid() != self._process:
            return FileStats()
        return self._blocks.stats()

    # --- reading -----------------------------------------------------------------------------------------------------

    def read(self, namespace: bytes, tokens: np.ndarray | Sequence[int], start: int, end: int) -> np.ndarray | None:
        """The K/V of tokens `start..end`, whole blocks: uint8 [n, token_bytes], for the first n of them; None: for none."""
        return self._blocks.read(namespace, as_tokens(tokens), start, end) if self._works() else None

    def fetch(self, namespace: bytes, tokens: np.ndarray | Sequence[int], start: int, end: int) -> Fetch:
        """`read` in the reader's thread. It returns at once."""
        kv = Future[np.ndarray | None]()
        job = _job(self._blocks.read, kv, namespace, as_tokens(tokens).copy(), start, end)
        if not self._works() or not self._reader.put(job, 0, kv.cancel):
            kv.set_result(None)
        return Fetch(kv)

    # --- writing -----------------------------------------------------------------------------------------------------

    def write(self, namespace: bytes, tokens: np.ndarray | Sequence[int], start: int, kv: np.ndarray) -> bool:
        """Write `kv`, that of `tokens` from `start` on, whole blocks. Blocks that are in files already are left out.

        Whether all are in files now.
        """
        known = self._checked(namespace, tokens, start, kv)
        return self._works() and self._blocks.write(namespace, known, start, kv) is not None

    def offer(
        self,
        namespace: bytes,
        tokens: np.ndarray | Sequence[int],
        start: int,
        kv: np.ndarray,
        keys: Sequence[bytes] | None = None,
    ) -> bool:
        """`write` in the writer's thread. False, at once, if too much is waiting for it already; always False when the
        store is closed, and in a forked process. Then nothing is written.

        `kv` is the store's from now on, and must not be changed any more. `keys`: of its blocks, if they are known.
        """
        known = self._checked(namespace, tokens, start, kv)
        if not self._works():
            return False
        if keys is None:
            keys = block_keys(namespace, known, self.block_size)[start // self.block_size :]
        with self._lock:
            self._offered.update(keys)
        job = _job(self._write_in_pace, Future[None](), namespace, known, start, kv, keys)
        if self._writer.put(job, kv.nbytes):
            return True
        self._no_longer_offered(keys)
        self._blocks.count_lost()
        return False

    def has_room(self, num_bytes: int) -> bool:
        """Whether `offer` would take so many bytes now."""
        return self._works() and self._writer.has_room(num_bytes)

    def count_lost(self) -> None:
        """Note that a run of blocks is not written."""
        if self._works():
            self._blocks.count_lost()

    def note_use(self, parts: Sequence[tuple[Sequence[bytes], int]]) -> None:
        """Have the writer's thread note that blocks are used now, those of the last part last, after all that has been
        offered is written. A part: the keys of a sequence's blocks from its start on, and the first of them that counts."""
        if self._works():
            self._writer.put(_job(self._blocks.note_use, Future[None](), parts))

    def size_of(self, namespace: bytes, keys: Sequence[bytes], first: int, counted: Set[str]) -> tuple[int, set[str]]:
        """How many bytes files with the blocks from `first` on of a sequence with these `keys` take up, and their names:
        the files that there are, without those `counted` already, and those that would be written for the other blocks."""
        return self._blocks.size_of(namespace, keys, first, counted)

    @property
    def is_open(self) -> bool:
        """False when it is closed, and in a forked process."""
        return self._works()

    def flush(self, timeout: float | None = None) -> int:
        """Write what was offered as fast as the disk can, and wait for it, at most `timeout` seconds.

        Returns how many bytes of it are not written by then.
        """
        if not self._works():
            return 0
        self._hurry.set()
        try:
            return 0 if self._writer.wait(timeout) else self._writer.load
        finally:
            if not self._is_closed:
                self._hurry.clear()

    def close(self, timeout: float | None = 10.0) -> int:
        """`flush`, then read and write nothing more. What is not written by then is lost: returns how many bytes."""
        if not self._works():
            return 0
        self._is_closed = True
        self._hurry.set()
        lost = 0 if self._writer.close(timeout) else self._writer.load
        self._end_later()
        if lost:
            logger.warning("files of K/V: closed when %d bytes were not written yet", lost)
        return lost

    def _write_in_pace(
        self, namespace: bytes, tokens: np.ndarray, start: int, kv: np.ndarray, keys: Sequence[bytes]
    ) -> None:
        began = self._clock()
        try:
            num_bytes = self._blocks.write(namespace, tokens, start, kv)
        finally:
            self._no_longer_offered(keys)
        if not self._hurry.is_set():  # or else the pauses that were left out would follow afterwards
            self._hurry.wait(self._pace.pause_after(num_bytes or 0, began))

    def _no_longer_offered(self, keys: Sequence[bytes]) -> None:
        with self._lock:
            for key in keys:
                self._offered[key] -= 1
                if not self._offered[key]:
                    del self._offered[key]

    # --- checks ------------------------------------------------------------------------------------------------------

    def _works(self) -> bool:
        return not self._is_closed and os.getpid() == self._process

    def _checked(self, namespace: bytes, tokens: object, start: int, kv: np.ndarray) -> np.ndarray:
        known = as_tokens(tokens).copy()
        assert kv.dtype == np.uint8
        assert kv.shape == (len(known) - start, self.token_bytes)
        assert start % self.block_size == len(known) % self.block_size == 0
        assert len(namespace) <= MOST_BYTES
        return known


def _close_folder_in_the_end(reader: Worker, writer: Worker, operations: FileOperations) -> None:
    """Close the folder when neither worker does anything any more."""
    reader.ended.add_done_callback(lambda _: writer.ended.add_done_callback(lambda _: operations.end()))


def _end(reader: Worker, writer: Worker) -> None:
    """Have both threads end."""
    reader.close()
    writer.close()


def _job(method: Callable[..., Any], result: "Future[Any]", *args: Any) -> Callable[[], None]:
    """A job for a worker: call `method`, unless `result` has been cancelled, which otherwise gets what it returns."""

    def job() -> None:
        if result.set_running_or_notify_cancel():
            try:
                result.set_result(method(*args))
            except Exception:  # a bug, or no memory: a miss is better than a request that fails
                logger.exception("files of K/V: an error")
                result.set_result(None)

    return job
