"""How quickly K/V comes from each tier, and files of K/V that are not what they should be."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from nanoinfer.cache.tiers.block_files import BlockFiles, Run
from nanoinfer.cache.tiers.block_index import block_digests
from nanoinfer.llm import LLM
from nanoinfer.sampling_params import SamplingParams

FIELDS = {"namespace": "", "router_namespace": ""}
EIGHT = np.array([1, 413, 691, 410, 417, 13, 17, 263])
KV = np.frombuffer(b"K/V4K/V5K/V6K/V7", np.uint8).reshape(4, 4)  # made up


def seconds_per_token(prompt: list[int], folder: Path, rounds: int) -> dict[str, float]:
    """Until the first new token, by where the prompt's K/V comes from: computed, host, or disk. The best of some rounds."""
    one, best = SamplingParams(max_new_tokens=1), dict[str, float]()
    for number in range(rounds):
        for tier in ("computed", "host", "disk"):
            options: dict[str, Any] = {"host_cache_tokens": 4096} if tier != "computed" else {}
            options |= {"cache_dir": folder} if tier == "disk" else {}
            engine = LLM("story", max_total_tokens=1024, **options)
            if tier == "host":
                engine.generate(prompt, one, use_tqdm=False)
            other = np.random.default_rng(number).integers(10, 500, len(prompt)).tolist()
            engine.generate(other, one, use_tqdm=False)  # fills the pool, and evicts the prompt
            began = perf_counter()
            (output,) = engine.generate(prompt, one, use_tqdm=False)
            seconds = (perf_counter() - began) / len(prompt)
            if tier == "computed" or output.cached_tokens_by_tier[tier] > 0.8 * len(prompt):
                best[tier] = min(best.get(tier, seconds), seconds)
            engine.shutdown()  # writes files; in the first round, there were none
    return best


def read_bad_files(folder: Path) -> Iterator[tuple[str, np.ndarray | None, str]]:
    """Damage a file of a block in several ways; for each, what reading it gives, and what the log says."""
    for name in ("nothing", "torn", "flipped", "another model's", "another text's"):
        files, run = _files(folder / name), _second_block(EIGHT)
        files.write(run)
        (path,) = (folder / name).glob("*/*")
        content = bytearray(path.read_bytes())
        if name == "flipped":
            content[-10] ^= 1
        path.write_bytes(content[:-10] if name == "torn" else content)
        if name.startswith("another"):
            theirs = _files(folder / "theirs", "b" * 64 if "model" in name else "a" * 64)
            theirs.write(_second_block(EIGHT if "model" in name else EIGHT[::-1].copy()))
            next((folder / "theirs").glob("*/*")).rename(path)
        with _Log() as log:
            yield name, files.read(run.names, 1, FIELDS, EIGHT), " ".join(log.lines)


def _files(folder: Path, fingerprint: str = "a" * 64) -> BlockFiles:
    files = BlockFiles(folder, fingerprint, block_size=4, token_bytes=4)
    files.look()  # reads what is in the folder
    return files


def _second_block(tokens: np.ndarray) -> Run:
    return Run([digest.hex() for digest in block_digests(b"", tokens, 4)], 1, FIELDS, tokens, KV)


class _Log(logging.Handler):
    """What the package logs about its cache inside the block, without the long names of files."""

    def __enter__(self) -> "_Log":
        self.lines, self.logger = list[str](), logging.getLogger("nanoinfer.cache")
        self.logger.addHandler(self)
        self.logger.propagate = False
        return self

    def __exit__(self, *error: object) -> None:
        self.logger.removeHandler(self)
        self.logger.propagate = True

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(re.sub(r"files of K/V: [0-9a-f]{64}-[0-9]+", "the file", record.getMessage()))
