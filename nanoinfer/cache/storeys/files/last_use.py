"""LastUse: when files were used last, which is their time of modification."""

import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress

from nanoinfer.cache.storeys.files.file_operations import FileOperations

LATEST = 1 << 62  # ns, in the year 2116


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
