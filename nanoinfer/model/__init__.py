"""From token ids to logits: the description of a pass, the runner, the decoder and its families."""

from nanoinfer.model.config import ModelConfig
from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.model_runner import ModelRunner

__all__ = ["ForwardMode", "InputMetadata", "ModelConfig", "ModelRunner"]
