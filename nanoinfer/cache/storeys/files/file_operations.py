"""FileOperations: all that a FileStore asks of the operating system. Tests put another one in its place, which fails."""

import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress


class FileOperations:
    """Operations on files of one folder, by name. `folder` is the open folder, so that it stays the one that was checked,
    whatever its path leads to later on. All raise OSError. None of them follows a symbolic link in the folder."""

    def __init__(self, folder: int):
        self._folder = folder

    def names(self) -> list[str]:
        """What is in the folder. It is opened anew: two threads that list one open folder would share their place in it."""
        listing = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._folder)
        try:
            return os.listdir(listing)
        finally:
            os.close(listing)

    def status(self, name: str) -> os.stat_result:
        """Size, owner, permissions and times of a file."""
        return os.stat(name, dir_fd=self._folder, follow_symlinks=False)

    def open(self, name: str) -> int:
        """Open for reading. It never waits, not even if the name is a pipe's."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        return os.open(name, flags, dir_fd=self._folder)

    def status_of(self, file: int) -> os.stat_result:
        """`status` of an open file."""
        return os.fstat(file)

    def read(self, file: int, into: memoryview, offset: int) -> int:
        """Read bytes from `offset` on; returns how many, 0 at the end of the file. Others may read it at the same time."""
        return os.preadv(file, [into], offset)

    def create(self, name: str, size: int) -> int:
        """A new file for writing that only its owner may read, locked until it is closed. It counts `size` bytes already.

        The system releases the lock when the process ends, in whatever way.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(name, flags, 0o600, dir_fd=self._folder)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(file, size)
        except BaseException:
            os.close(file)
            with suppress(OSError):
                self.remove(name)
            raise
        return file

    def write(self, file: int, data: Sequence[memoryview]) -> int:
        """Append to what was written to an open file; returns how many bytes were taken."""
        return os.writev(file, data)

    def is_locked(self, file: int) -> bool:
        """Whether another open file of this name is locked, that is, whether somebody is still writing it."""
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False

    def close(self, file: int) -> None:
        """Close an open file."""
        os.close(file)

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, in one step; a file that had it is gone."""
        os.rename(old, new, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def remove(self, name: str) -> None:
        """Remove a file."""
        os.unlink(name, dir_fd=self._folder)

    def touch(self, name: str, time_ns: int) -> None:
        """Set when a file was last used, as its time of modification."""
        os.utime(name, ns=(time_ns, time_ns), dir_fd=self._folder, follow_symlinks=False)

    def end(self) -> None:
        """Close the folder."""
        os.close(self._folder)
