"""Two processes that read and write K/V in one folder. They are killed at any moment, bits flip, disks are full at times,
and clocks jump.

`python -m tests.soak.episodes.files FOLDER --seed 0` is one such process. It ends with an error when K/V comes back that is
not what its tokens say. `run_episode` starts two, kills and replaces them, damages files, and looks at the folder.
"""

import argparse
import errno
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from nanoinfer.cache.storeys.files import FileStore, bound
from nanoinfer.cache.storeys.files.keys import as_tokens, block_keys
from tests.helpers.kv_files import BLOCK, faulty, hit, kv_files, kv_of, look, open_store, put, unfinished_files
from tests.helpers.own_names import module_with

MAX_BYTES, FILE_BYTES = 60_000, 8 * BLOCK * 6
SECONDS = 12.0
STOP = "stop"  # a file with this name ends both


def random_tokens(rng: random.Random) -> list[int]:
    """Of a few conversations that share beginnings, up to some block."""
    start = [rng.randrange(3)] * 8
    middle = [token for _ in range(rng.randrange(6)) for token in [rng.randrange(2)] * BLOCK]
    return [*start, *middle, *[rng.randrange(20)] * BLOCK]


def faults(rng: random.Random) -> dict[str, Any]:
    """Operations that fail now and then."""

    def sometimes(number: int, share: float) -> Any:
        def fail(*_: object) -> None:
            if rng.random() < share:
                raise OSError(number, "by chance")

        return fail

    return {
        "write": sometimes(errno.ENOSPC, 0.05),
        "create": sometimes(errno.ENOSPC, 0.02),
        "rename": sometimes(errno.EIO, 0.02),
        "read": sometimes(errno.EIO, 0.01),
        "remove": sometimes(errno.EACCES, 0.02),
        "touch": sometimes(errno.EROFS, 0.02),
        "names": sometimes(errno.EIO, 0.01),
    }


def use(folder: Path, seed: int) -> None:
    """Read and write until the parent says stop."""
    rng, real = random.Random(seed), time.time_ns
    jump = [0]
    bound.time = module_with(time, time_ns=lambda: max(0, real() + jump[0]))  # type: ignore[attr-defined]
    store: FileStore | None = None
    hits = 0
    while not (folder / STOP).exists():
        if store is None or rng.random() < 0.01:
            if store is not None:
                store.close(rng.choice([0, 60]))
            store = open_store(folder, max_bytes=MAX_BYTES, file_bytes=FILE_BYTES, operations=faulty(faults(rng)))
        if rng.random() < 0.02:
            jump[0] = rng.choice([0, 0, 10**15, -(10**15), 10**18])
        tokens = random_tokens(rng)
        start = BLOCK * rng.randrange(len(tokens) // BLOCK)
        deed = rng.random()
        if deed < 0.3:
            put(store, tokens, start)
        elif deed < 0.5:
            store.offer(b"", tokens, start, kv_of(b"", tokens, start, len(tokens)))
        elif deed < 0.55:
            look(store)
        elif deed < 0.6:
            store.note_use([(block_keys(b"", as_tokens(tokens), BLOCK), start // BLOCK)])
        elif hit(store, tokens, start) > start:  # AssertionError if other bytes come back
            hits += 1
            if hits % 100 == 0:
                print("100 hits", flush=True)


def damage(folder: Path, rng: random.Random) -> bool:
    """Flip a bit of a file, or cut it; whether there was one."""
    files = list(folder.glob("*-*.safetensors")) + unfinished_files(folder)
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


def total(folder: Path) -> int:
    """The bytes of all files of K/V; of one that goes meanwhile, none."""

    def sizes() -> Iterator[int]:
        for file in [*folder.glob("*-*.safetensors"), *unfinished_files(folder)]:
            with suppress(OSError):
                yield file.stat().st_size

    return sum(sizes())


def start(folder: Path, seed: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.soak.episodes.files", str(folder), "--seed", str(seed)]
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
        store = open_store(folder, max_bytes=MAX_BYTES, file_bytes=FILE_BYTES)
        assert put(store, [1] * BLOCK)
        look(store)
        assert unfinished_files(folder) == [], "left by a process that was killed"
        assert total(folder) <= MAX_BYTES
        for _ in range(300):
            hit(store, random_tokens(rng))
        assert store.close(120) == 0
        assert kv_files(folder)
    return counts


def hits_in(said: str) -> int:
    return 100 * said.count("100 hits")


def check_running(process: "subprocess.Popen[str]") -> None:
    if process.poll() is not None:
        raise AssertionError(process.communicate()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    use(args.folder, args.seed)


if __name__ == "__main__":
    main()
