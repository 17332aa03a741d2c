"""nanoinfer: an SGLang-style LLM inference engine small enough to read in an evening."""

import nanoinfer.device  # noqa: F401 (first: it says so where importing torch fails for want of an NPU's libraries)
from nanoinfer.engine import Engine
from nanoinfer.errors import InvalidRequestError, UnsupportedModelError, WeightMismatchError
from nanoinfer.llm import LLM
from nanoinfer.outputs import RequestOutput, StreamPiece
from nanoinfer.req import FinishReason
from nanoinfer.sampling_params import SamplingParams

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "Engine",
    "FinishReason",
    "InvalidRequestError",
    "RequestOutput",
    "SamplingParams",
    "StreamPiece",
    "UnsupportedModelError",
    "WeightMismatchError",
]
