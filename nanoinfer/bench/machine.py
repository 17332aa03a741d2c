"""What a measurement ran on: processor, memory and its read bandwidth; and the size of a checkpoint."""

import json
import os
import platform
import struct
import time
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

import torch


def describe_machine() -> dict[str, Any]:
    """Processor, number of cores this process may use, memory in GiB, operating system, Python."""
    affinity = getattr(os, "sched_getaffinity", None)
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": _cpu_model(),
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
        "memory_gib": round(pages / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _cpu_model() -> str:
    """The name in /proc/cpuinfo, with family and model numbers, which distinguish generations of the same name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    if "model name" not in fields:
        return platform.machine()
    wide = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in fields.get("flags", "").split()]
    return f"{fields['model name']} (family {fields.get('cpu family')}, model {fields.get('model')}; {', '.join(wide)})"


def read_bandwidth(threads: int, size: int = 2**30, reads: int = 9) -> float:
    """Speed in GB/s (10**9 bytes) at which `threads` threads read memory: the median of `reads` sums over `size` bytes of
    float32."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        block = torch.ones(size // 4)
        block.sum()
        seconds = []
        for _ in range(reads):
            start = time.perf_counter()
            block.sum()
            seconds.append(time.perf_counter() - start)
        return size / median(seconds) / 1e9
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Checkpoint:
    """What a benchmark needs to know about a Hugging Face checkpoint, read from its headers."""

    path: str
    name: str
    dtype: str
    parameters: int
    vocab_size: int
    context_len: int

    @classmethod
    def read(cls, path: Path) -> "Checkpoint":
        """The checkpoint in the folder `path`. ValueError or OSError naming what is missing."""
        config = json.loads((path / "config.json").read_text())
        tensors = {name: each for file in path.glob("*.safetensors") for name, each in _tensors(file).items()}
        if not tensors:
            raise ValueError(f"{path}: has no *.safetensors")
        if config.get("tie_word_embeddings", False):
            tensors.pop("lm_head.weight", None)  # some checkpoints store it again
        kinds = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
        stored = kinds.get(min(kind for kind, _ in tensors.values()), "float32")
        return cls(
            str(path),
            _name(path),
            config.get("dtype") or config.get("torch_dtype") or stored,
            sum(size for _, size in tensors.values()),
            config["vocab_size"],
            config["max_position_embeddings"],
        )

    def as_dict(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "path"}


def _name(path: Path) -> str:
    """The folder's name; for a download from the Hub, whose folder is named by a hash, the repository's name."""
    path = path.absolute()
    if path.parent.name == "snapshots":
        return path.parent.parent.name.removeprefix("models--").replace("--", "/")
    return path.name


def _tensors(file: Path) -> dict[str, tuple[str, int]]:
    """Name → (dtype, elements) from a safetensors header: eight bytes of length, then JSON."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(length))
    return {name: (entry["dtype"], prod(entry["shape"])) for name, entry in header.items() if name != "__metadata__"}
