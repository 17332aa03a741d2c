"""Bound: keeps all files in a folder together within `max_bytes`. Those used longest ago go first, of whatever format."""

import heapq
import threading

from nanoinfer.cache.storeys.files.file_operations import FileOperations
from nanoinfer.cache.storeys.files.last_use import LastUse
from nanoinfer.cache.storeys.files.names import is_finished, is_unfinished


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
