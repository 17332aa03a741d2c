"""What a measurement ran on: processor and memory; and the size of a checkpoint."""

import json
import os
import platform
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

from safetensors import safe_open

from nanoinfer.model.config import ModelConfig
from nanoinfer.model.weights import checkpoint_dtype
from nanoinfer.requests.gguf_header import read_header


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
        lines = []
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    if "model name" not in fields:
        return platform.processor() or platform.machine()
    wide = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in fields.get("flags", "").split()]
    return f"{fields['model name']} (family {fields.get('cpu family')}, model {fields.get('model')}; {', '.join(wide)})"


@dataclass(frozen=True)
class Checkpoint:
    """What a benchmark needs to know about a checkpoint or a GGUF file, read from its headers. `dtype`: "auto" for a GGUF
    file, whose numbers every engine uses as they are."""

    path: str
    name: str
    dtype: str
    parameters: int
    vocab_size: int
    context_len: int

    @classmethod
    def read(cls, path: Path) -> "Checkpoint":
        """The checkpoint in the folder `path`, or the GGUF file. ValueError or OSError naming what is missing."""
        if path.is_file():
            parameters = sum(prod(tensor.shape) for tensor in read_header(path).tensors.values())
            of_file = ModelConfig.from_pretrained(path)
            return cls(str(path), path.name, "auto", parameters, of_file.vocab_size, of_file.max_position_embeddings)
        config = json.loads((path / "config.json").read_text())
        sizes = dict[str, int]()
        for file in path.glob("*.safetensors"):
            with safe_open(file, "pt") as stored:
                sizes |= {name: prod(stored.get_slice(name).get_shape()) for name in stored.keys()}  # noqa: SIM118
        if config.get("tie_word_embeddings", False):
            sizes.pop("lm_head.weight", None)  # some checkpoints store it again
        dtype = config.get("dtype") or config.get("torch_dtype") or str(checkpoint_dtype(path)).removeprefix("torch.")
        folder = path.absolute()
        of_hub = folder.parent.name == "snapshots"  # whose downloads' folders are named by a hash
        return cls(
            str(path),
            folder.parent.parent.name.removeprefix("models--").replace("--", "/") if of_hub else folder.name,
            dtype,
            sum(sizes.values()),
            config["vocab_size"],
            config["max_position_embeddings"],
        )

    def as_dict(self) -> dict[str, Any]:
        """Without its folder, which means nothing elsewhere."""
        return {key: value for key, value in asdict(self).items() if key != "path"}
