"""nanoinfer: an SGLang-style LLM inference engine to read: notebooks/handbook/architecture.md lists its core in order."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from nanoinfer.version import __version__ as __version__

if TYPE_CHECKING:
    from nanoinfer.async_llm import AsyncEngine, AsyncStream
    from nanoinfer.engine.engine import Engine
    from nanoinfer.engine.stats import EngineStats
    from nanoinfer.errors import (
        AdapterError,
        EngineClosedError,
        InvalidRequestError,
        QueueFullError,
        StepFailedError,
        UnsupportedModelError,
        WeightMismatchError,
    )
    from nanoinfer.llm import LLM
    from nanoinfer.outputs import FinishReason, RequestOutput, StreamPiece
    from nanoinfer.sampling_params import SamplingParams

__all__ = [
    "LLM",
    "AdapterError",
    "AsyncEngine",
    "AsyncStream",
    "Engine",
    "EngineClosedError",
    "EngineStats",
    "FinishReason",
    "InvalidRequestError",
    "QueueFullError",
    "RequestOutput",
    "SamplingParams",
    "StepFailedError",
    "StreamPiece",
    "UnsupportedModelError",
    "WeightMismatchError",
]

# Where the public names come from. Each file is loaded at its first use, so `python -m nanoinfer --help` needs no torch.
_FILES = {
    "async_llm": ("AsyncEngine", "AsyncStream"),
    "engine.engine": ("Engine",),
    "errors": (
        "AdapterError",
        "EngineClosedError",
        "InvalidRequestError",
        "QueueFullError",
        "StepFailedError",
        "UnsupportedModelError",
        "WeightMismatchError",
    ),
    "llm": ("LLM",),
    "outputs": ("FinishReason", "RequestOutput", "StreamPiece"),
    "sampling_params": ("SamplingParams",),
    "engine.stats": ("EngineStats",),
}


def __getattr__(name: str) -> Any:
    """Load a public name or a part of the package at its first use (PEP 562)."""
    file = next((file for file, names in _FILES.items() if name in names), None)
    if file is None:
        if find_spec(f"{__name__}.{name}") is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module(f"{__name__}.{name}")
    import_module("nanoinfer.device")  # first: it explains why torch cannot be imported without an NPU's libraries
    value = globals()[name] = getattr(import_module(f"{__name__}.{file}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
