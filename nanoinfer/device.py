"""Devices and dtypes: which there are, and what differs between "cpu", "cuda" and "npu"."""

import importlib
import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

NO_CANN = "torch_npu is installed but cannot be loaded; is CANN installed, and its set_env.sh sourced?"

try:
    import torch
except RuntimeError as error:  # importing torch loads installed device backends, and fails if one of them fails
    if "torch_npu" not in str(error):
        raise
    raise ImportError(f"{NO_CANN} To run without it, set TORCH_DEVICE_BACKEND_AUTOLOAD=0") from error

OTHER_DTYPES = {"half": "float16", "float": "float32"}  # other names
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NPU_DISPATCH_KEY = "PrivateUse1"  # the dispatch key of torch_npu's tensors


def resolve_device(device: str | torch.device = "cpu") -> torch.device:
    """A usable torch device. "auto" takes CUDA if it is available, else an Ascend NPU, else the CPU.

    Raises ValueError naming the device when it is unknown or cannot be used here. For an NPU, the message says what is
    missing: torch_npu, the CANN libraries, or the device.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "npu" if _npu_available() else "cpu"
    if str(device).startswith("npu") and not _npu_available():  # importing torch_npu also registers the name
        raise ValueError(f"device={device!r}: {npu_problem() or 'torch_npu finds no NPU'}")
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device={device!r}: must be auto, cpu, cuda or npu, or with an index: cuda:1") from error
    usable = {"cpu": lambda: True, "cuda": torch.cuda.is_available, "npu": _npu_available}
    if resolved.type not in usable:
        raise ValueError(f"device={device!r}: must be one of {', '.join(['auto', *usable])}")
    if not usable[resolved.type]() or (resolved.index or 0) >= _device_count(resolved.type):
        raise ValueError(f"device={device!r}: torch finds no such device here")
    return resolved


def resolve_dtype(dtype: str | torch.dtype, *others: str) -> torch.dtype:
    """A torch dtype from its name, or `dtype` itself. ValueError that lists the supported ones, and the `others` that the
    caller also accepts."""
    resolved = DTYPES.get(OTHER_DTYPES.get(dtype, dtype)) if isinstance(dtype, str) else dtype
    if resolved is None or resolved not in DTYPES.values():
        raise ValueError(f"dtype={dtype!r}: must be one of {', '.join([*others, *DTYPES])}")
    return resolved


def memory_for_kv(device: torch.device, share: float | None = None) -> int:
    """How many bytes a K/V pool takes: this share of an accelerator's free memory, or of the CPU's memory (of the
    container's limit, if there is one). None: half and a quarter."""
    if device.type != "cpu":
        return int(getattr(torch, device.type).mem_get_info(device)[0] * (share or 0.5))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        memory = min(memory, int(text))
    return int(memory * (share or 0.25))


def on_stream(device: torch.device, stream: Any) -> AbstractContextManager[Any]:
    """A context in which work runs on `stream` of an accelerator. None means the current stream. Ignored on a CPU."""
    if stream is None or device.type == "cpu":
        return nullcontext()
    return getattr(torch, device.type).stream(stream)


def import_torch_npu() -> Any:
    """The torch_npu module. ImportError when torch_npu or CANN is missing; the message says which."""
    try:
        return importlib.import_module("torch_npu")
    except (ImportError, OSError, RuntimeError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "torch_npu":
            raise ImportError(
                "torch_npu is not installed; an NPU needs CANN and the torch_npu for this version of torch"
            ) from error
        raise ImportError(f"{NO_CANN} ({error})") from error


def npu_problem() -> str | None:
    """Why no NPU can be used; None when one can."""
    try:
        import_torch_npu()
    except ImportError as error:
        return str(error)
    # torch_npu adds this attribute to torch
    return None if getattr(torch, "npu").is_available() else "torch_npu finds no NPU"  # noqa: B009


def _device_count(kind: str) -> int:
    return 1 if kind == "cpu" else getattr(torch, kind).device_count()


def _npu_available() -> bool:
    return npu_problem() is None
