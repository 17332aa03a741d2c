"""The formats that are known, and which of them a model writes: its chat template says it."""

from typing import Any

from nanoinfer.requests.tool_calls.call_format import CallFormat
from nanoinfer.requests.tool_calls.hermes import Hermes
from nanoinfer.requests.tool_calls.reasoning import THINK, ReasoningFormat

HERMES = Hermes()  # where the template says nothing, too
CALL_FORMATS: list[CallFormat] = [HERMES]  # the first that fits is taken
REASONING_FORMATS = [THINK]


def format_of(tokenizer: Any) -> CallFormat | None:
    """The format of a model's calls; None if it is not known."""
    template = _template_of(tokenizer)
    return next((each for each in CALL_FORMATS if each.is_in(template)), None)


def reasoning_of(tokenizer: Any) -> ReasoningFormat | None:
    """How a model marks its thoughts; None if it has none."""
    template = _template_of(tokenizer)
    return next((each for each in REASONING_FORMATS if each.is_in(template)), None)


def _template_of(tokenizer: Any) -> str:
    """A model's chat template, that for tools if there are several; empty without one."""
    template = getattr(getattr(tokenizer, "hf_tokenizer", None), "chat_template", None)
    if isinstance(template, dict):
        template = template.get("tool_use") or template.get("default")
    return str(template or "").replace('\\"', '"')
