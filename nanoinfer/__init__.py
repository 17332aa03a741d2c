"""nanoinfer: an SGLang-style LLM inference engine small enough to read in an evening."""

import nanoinfer.device  # noqa: F401 (first: it says so where importing torch fails for want of an NPU's libraries)
from nanoinfer.async_engine import AsyncEngine, AsyncStream
from nanoinfer.engine import Engine
from nanoinfer.errors import (
    EngineClosedError,
    InvalidRequestError,
    QueueFullError,
    StepFailedError,
    UnsupportedModelError,
    WeightMismatchError,
)
from nanoinfer.llm import LLM
from nanoinfer.requests.outputs import RequestOutput, StreamPiece
from nanoinfer.requests.req import FinishReason
from nanoinfer.requests.sampling_params import SamplingParams
from nanoinfer.stats import EngineStats

__version__ = "0.1.0"

__all__ = [
    "LLM",
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
