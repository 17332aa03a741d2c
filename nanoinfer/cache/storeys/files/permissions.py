"""Which folders and files another user could have changed. As ssh does it with its keys: those are not read.

What a file holds is checked in other ways, too. But whoever can write a file can also write a checksum that fits, and K/V
made by somebody else can make a model say anything.
"""

import os
import stat
from pathlib import Path

OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def open_folder(path: str | Path, trust: bool = False) -> int:
    """Open the folder `path`. If it is not there, it is made first, and so are those above it, for their owner only (0700).

    ValueError if that fails, or if another user could change the folder or put another one in its place: it and all
    folders above it must belong to this user or to root, and neither group nor others may write to them (above it, they may
    if the folder is sticky, as /tmp is). `trust=True` leaves this out.
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
        if not trust:
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
