"""Bound: keeps all files in a folder together within `max_bytes`. Those used longest ago go first, of whatever format."""

import heapq
import os
import re
import threading
import time
from collections.abc import Iterable
from contextlib import suppress

from nanoinfer.cache.storeys.files.file_operations import FileOperations

_FINISHED = re.compile(r"[0-9a-f]{32}-[0-9a-f]{32}\.safetensors")
_UNFINISHED = re.compile(r"unfinished-[0-9a-f]{32}")
LATEST = 1 << 62  # ns, in the year 2116


def finished_name(fingerprint: str, content: str) -> str:
    """The name of a file with K/V: two hexadecimal digests, of which it has the first 32 digits each."""
    return f"{fingerprint[:32]}-{content[:32]}.safetensors"


def unfinished_name(random: bytes) -> str:
    """The name of a file while it is written; `random` has 16 bytes."""
    return f"unfinished-{random.hex()}"


def is_finished(name: str, fingerprint: str = "") -> bool:
    """Whether it is the name of a file with K/V, with this fingerprint if one is given."""
    return name.startswith(fingerprint[:32]) and _FINISHED.fullmatch(name) is not None


def is_unfinished(name: str) -> bool:
    """Whether it is the name of a file that is being written, or was when its process was killed."""
    return _UNFINISHED.fullmatch(name) is not None


class LastUse:
    """Each use is later than every use that was seen before it, here or by another process, also if the clock has been put
    back meanwhile. So a clock that jumps changes nothing about which file was used before which."""

    def __init__(self, operations: FileOperations):
        self._operations, self._newest = operations, 0  # ns
        self._lock = threading.Lock()  # of _newest: readers and writers note uses

    def saw(self, status: os.stat_result) -> int:
        """When a file was last used, ns. A time that cannot be is as good as long ago."""
        use = status.st_mtime_ns if status.st_mtime_ns < LATEST else 0
        with self._lock:
            self._newest = max(self._newest, use)
        return use

    def now(self, names: Iterable[str]) -> None:
        """Note that files are used now, the first ones before the last ones."""
        for name in names:
            with self._lock:
                self._newest = use = max(self._newest + 1, time.time_ns())
            with suppress(OSError):  # it is gone, or the disk is read-only
                self._operations.touch(name, use)


class Bound:
    """Makes room for a file that exists already, with its whole size, but is not written yet. For any thread.

    Each process counts what all others are writing before it writes itself, so together they keep the bound. Files never
    change once they are finished, so their sizes are looked up once; when a file was used last is looked up again before it
    is removed.
    """

    def __init__(self, operations: FileOperations, last_use: LastUse, max_bytes: int):
        self._operations, self._last_use, self.max_bytes = operations, last_use, max_bytes
        self._making = threading.Lock()  # room is made for one file at a time
        self._sizes = dict[str, int]()
        self._oldest = list[tuple[int, str]]()  # a heap: last use as it was seen, name; some are gone or used since

    def make_room(self) -> tuple[list[str], bool]:
        """Remove files until the bound holds; the names of those that are gone, and whether it holds. Raises OSError."""
        with self._making:
            gone, stuck = [], []
            excess = self._total() - self.max_bytes
            while excess > 0 and self._oldest:
                use, name = heapq.heappop(self._oldest)
                if name not in self._sizes:
                    continue
                try:
                    seen = self._last_use.saw(self._operations.status(name))
                    if seen != use:
                        heapq.heappush(self._oldest, (seen, name))
                        continue
                    self._operations.remove(name)
                except FileNotFoundError:
                    pass  # another process was faster
                except OSError:
                    stuck.append((use, name))
                    continue
                gone.append(name)
                excess -= self._sizes.pop(name)
            for item in stuck:
                heapq.heappush(self._oldest, item)
            return gone, excess <= 0

    def _total(self) -> int:
        """The bytes of all files, after a look at which there are."""
        names = self._operations.names()
        finished = {name for name in names if name in self._sizes or is_finished(name)}
        for name in self._sizes.keys() - finished:
            del self._sizes[name]
        being_written = 0
        for name in names:
            if name in self._sizes or not (name in finished or is_unfinished(name)):
                continue
            try:
                status = self._operations.status(name)
            except FileNotFoundError:
                continue  # it has just been removed, or finished
            if name in finished:
                self._sizes[name] = status.st_size
                heapq.heappush(self._oldest, (self._last_use.saw(status), name))
            else:
                being_written += status.st_size
        return sum(self._sizes.values()) + being_written
