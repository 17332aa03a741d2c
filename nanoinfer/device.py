"""The only place that says "cpu", "cuda" or "npu"."""

import importlib
import importlib.util
import os
from pathlib import Path

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_device(device: str | torch.device = "cpu") -> torch.device:
    """A usable torch device. "auto" takes CUDA where there is one, else an Ascend NPU, else the CPU.

    Raises ValueError naming the device when it is unknown or not usable here.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "npu" if _npu_available() else "cpu"
    if str(device).startswith("npu"):
        _npu_available()  # importing torch_npu is what teaches torch the name
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"device={device!r}: must be auto, cpu, cuda or npu, with :index where there are several"
        ) from error
    usable = {"cpu": lambda: True, "cuda": torch.cuda.is_available, "npu": _npu_available}
    if resolved.type not in usable:
        raise ValueError(f"device={device!r}: must be one of {', '.join(['auto', *usable])}")
    if not usable[resolved.type]() or (resolved.index or 0) >= _device_count(resolved.type):
        raise ValueError(f"device={device!r}: this installation of torch finds no such device")
    return resolved


def resolve_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """A torch dtype from its name. ValueError naming the supported ones."""
    resolved = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if resolved is None or resolved not in DTYPES.values():
        raise ValueError(f"dtype={dtype!r}: must be one of {', '.join(DTYPES)}")
    return resolved


def memory_for_kv(device: torch.device) -> int:
    """Bytes that a K/V pool may take unless told otherwise: half of an accelerator's free memory, or a quarter of the
    CPU's memory (of the container's limit, where there is one)."""
    if device.type != "cpu":
        return getattr(torch, device.type).mem_get_info(device)[0] // 2
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        memory = min(memory, int(text))
    return memory // 4


def _device_count(kind: str) -> int:
    return 1 if kind == "cpu" else getattr(torch, kind).device_count()


def _npu_available() -> bool:
    if importlib.util.find_spec("torch_npu") is None:
        return False
    try:
        importlib.import_module("torch_npu")
    except (ImportError, OSError):  # it is there, but the CANN libraries that it needs are not
        return False
    return bool(getattr(torch, "npu").is_available())  # noqa: B009 (torch_npu adds the attribute)
