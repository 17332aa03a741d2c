"""A model for agents: it thinks, calls a function, and answers once the function has returned."""

from pathlib import Path
from typing import Any

from nanoinfer import LLM
from tests.helpers.scripted_checkpoint import make

TAGS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
ARGUMENTS = '{"city": "Oslo", "days": 3}'
CALL = '{"name": "weather", "arguments": ' + ARGUMENTS + "}"
# Pieces, each one token. Behind the call, the script goes on where the prompt ends with <|answer|>.
SCRIPT = ["<think>", "Hm, ", "Oslo", "</think>", "Let me look. ", "<tool_call>", CALL[:20], CALL[20:44], CALL[44:]]
SCRIPT += ["</tool_call>", "<|answer|>", "It is ", "warm."]
# As Qwen's, in short.
TEMPLATE = (
    "{{ reasoning_effort }}{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    '{% for c in m.tool_calls or [] %}<tool_call>{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if messages[-1].role == 'tool' %}<|answer|>{% else %}<|im_start|>assistant\n{% endif %}"
)
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


def agent_llm(folder: Path, **options: Any) -> LLM:
    """It must call one function at a time: the first call ends its turn."""
    added = ("<|im_start|>", "<|answer|>", *TAGS)
    path = make(folder / "agent", SCRIPT, TEMPLATE, added, ("<|im_start|>", "<|answer|>"))
    return LLM(path, max_total_tokens=4096, **options)
