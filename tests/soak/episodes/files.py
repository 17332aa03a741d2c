"""Two processes that read and write K/V in one folder. They are killed at any moment, bits flip, disks are full at times.

`python -m tests.soak.episodes.files FOLDER SEED` is one such process. It ends with an error when K/V comes back that is
not what its tokens say. `run_episode` starts two, kills and replaces them, damages files, and looks at the folder.
"""

import errno
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from nanoinfer.cache.tiers.block_files import BlockFiles
from tests.helpers.kv_files import BLOCK, hit, kv_files, open_files, put, total

MAX_BYTES = 60_000
SECONDS = 12.0
STOP = "stop"  # a file with this name ends both


class Faulty(BlockFiles):
    """Reads and writes fail now and then."""

    rng = random.Random()

    def _write_file(self, name: str, content: bytes) -> None:
        self._sometimes(errno.ENOSPC)
        super()._write_file(name, content)

    def _path(self, name: str) -> Path:
        self._sometimes(errno.EIO)
        return super()._path(name)

    def _sometimes(self, number: int) -> None:
        if self.rng.random() < 0.02:
            raise OSError(number, "by chance")


def random_tokens(rng: random.Random) -> list[int]:
    """Of a few conversations that share beginnings, up to some block."""
    start = [rng.randrange(3)] * 8
    middle = [token for _ in range(rng.randrange(6)) for token in [rng.randrange(2)] * BLOCK]
    return [*start, *middle, *[rng.randrange(20)] * BLOCK]


def use(folder: Path, seed: int) -> None:
    """Read and write until the parent says stop."""
    rng = Faulty.rng = random.Random(seed)
    files: BlockFiles | None = None
    hits = 0
    while not (folder / STOP).exists():
        if files is None or rng.random() < 0.01:
            files = open_files(folder, kind=Faulty, max_bytes=MAX_BYTES)
        tokens = random_tokens(rng)
        start = BLOCK * rng.randrange(len(tokens) // BLOCK)
        deed = rng.random()
        if deed < 0.4:
            put(files, tokens, start)
        elif deed < 0.5:
            files.look()
        elif hit(files, tokens, start) > start:  # AssertionError if other bytes come back
            hits += 1
            if hits % 100 == 0:
                print("100 hits", flush=True)


def damage(folder: Path, rng: random.Random) -> bool:
    """Flip a bit of a file, or cut it; whether there was one."""
    files = list(folder.glob("*/*"))
    with suppress(OSError, IndexError):
        file = rng.choice(files)
        if not (size := file.stat().st_size):
            return False  # it has been cut to nothing already
        with file.open("r+b") as opened:
            at = rng.randrange(size)
            if rng.random() < 0.3:
                opened.truncate(at)
            else:
                opened.seek(at)
                byte = opened.read(1)
                opened.seek(at)
                opened.write(bytes([byte[0] ^ (1 << rng.randrange(8))]))
        return True
    return False


def start(folder: Path, seed: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.soak.episodes.files", str(folder), str(seed)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_episode(seed: int, seconds: float = SECONDS) -> Counter[str]:
    """Two processes for some seconds. AssertionError with what was wrong."""
    rng, counts = random.Random(seed), Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        folder, end = Path(name), time.monotonic() + seconds
        processes = [start(folder, 10**6 * seed + i) for i in range(2)]
        try:
            while time.monotonic() < end:
                time.sleep(rng.uniform(0, 0.5))
                which = rng.randrange(2)
                if rng.random() < 0.1:
                    check_running(processes[which])
                    processes[which].send_signal(signal.SIGKILL)
                    counts["hits of files"] += hits_in(processes[which].communicate()[0])
                    processes[which] = start(folder, 10**6 * seed + 10 + counts["kills"])
                    counts["kills"] += 1
                else:
                    counts["damaged files"] += damage(folder, rng)
            (folder / STOP).touch()
            for process in processes:
                said, errors = process.communicate(timeout=120)
                assert process.returncode == 0, errors
                counts["hits of files"] += hits_in(said)
        finally:
            for process in processes:
                process.kill()
        files = open_files(folder, max_bytes=MAX_BYTES)
        assert put(files, [1] * BLOCK)
        assert total(folder) <= MAX_BYTES
        for _ in range(300):
            hit(files, random_tokens(rng))
        assert kv_files(folder)
    return counts


def hits_in(said: str) -> int:
    return 100 * said.count("100 hits")


def check_running(process: "subprocess.Popen[str]") -> None:
    if process.poll() is not None:
        raise AssertionError(process.communicate()[1])


if __name__ == "__main__":
    use(Path(sys.argv[1]), int(sys.argv[2]))
