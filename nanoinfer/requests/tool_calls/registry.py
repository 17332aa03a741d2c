"""The formats that are known, and which of them a model writes: its chat template says it, unless somebody does."""

import re
from typing import Any

from nanoinfer.requests.tool_calls.call_format import CallFormat
from nanoinfer.requests.tool_calls.deepseek import DeepSeek, DeepSeekFenced
from nanoinfer.requests.tool_calls.gptoss import CHANNELS, GptOss
from nanoinfer.requests.tool_calls.hermes import Hermes, Llama, Phi
from nanoinfer.requests.tool_calls.mistral import Mistral, MistralList
from nanoinfer.requests.tool_calls.pythonic import Gemma, Pythonic
from nanoinfer.requests.tool_calls.qwen_xml import QwenXml
from nanoinfer.requests.tool_calls.reasoning import THINK, ReasoningFormat

HERMES = Hermes()  # where the template says nothing, too
# The first that fits is taken.
CALL_FORMATS: list[CallFormat] = [
    *(GptOss(), QwenXml(), DeepSeekFenced(), DeepSeek(), Mistral(), MistralList(), Phi(), HERMES),
    *(Gemma(), Pythonic(), Llama()),
]
REASONING_FORMATS = [CHANNELS, THINK, ReasoningFormat("mistral", "[THINK]", "[/THINK]")]


def renders_tools(tokenizer: Any) -> bool:
    """Whether a model's chat template shows tools to the model."""
    return re.search(r"\btools\b", _template_of(tokenizer)) is not None


def format_of(tokenizer: Any) -> CallFormat | None:
    """The format of a model's calls; None if it is not known."""
    template, given = _template_of(tokenizer), getattr(tokenizer, "tool_call_parser", None)
    known = CALL_FORMATS if given is not None or renders_tools(tokenizer) else []
    return next((each for each in known if (each.is_in(template) if given is None else each.name == given)), None)


def reasoning_of(tokenizer: Any) -> ReasoningFormat | None:
    """How a model marks its thoughts; None if it has none."""
    template, given = _template_of(tokenizer), getattr(tokenizer, "reasoning_parser", None)
    known = REASONING_FORMATS
    return next((each for each in known if (each.is_in(template) if given is None else each.name == given)), None)


def _template_of(tokenizer: Any) -> str:
    """A model's chat template, that for tools if there are several; empty without one."""
    template = getattr(getattr(tokenizer, "hf_tokenizer", None), "chat_template", None)
    if isinstance(template, dict):
        template = template.get("tool_use") or template.get("default")
    return str(template or "").replace('\\"', '"')
