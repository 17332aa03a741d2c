"""The body of /v1/messages: Anthropic's fields, and what they are as a request to /v1/responses. Images, documents and
hosted tools are refused by their type."""

import json
import re
from typing import Annotated, Any, Literal

from pydantic import Field

from nanoinfer.server.errors import refuse_if
from nanoinfer.server.protocol import NOTHING, ByType, ChatRequest, Items, Label, StopTexts, Strict, or_text
from nanoinfer.server.responses import protocol as responses

NAMES = {  # of chat, or of /v1/responses → ours
    "response_format.json_schema": "output_config.format.schema",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
}
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
SAME = ("model", "stream", "temperature", "top_p", "top_k")
BILLING = re.compile(r"x-anthropic-billing-header:[^\n]*\n?")  # of Claude Code: it differs in each request


class TextBlock(responses.TextPart):
    """Text."""

    type: Literal["text"]


class ThinkingBlock(Strict):
    """What the model thought."""

    type: Literal["thinking"]
    thinking: str
    ignored = ("signature",)


class ToolUseBlock(Strict):
    """A call that the model has written."""

    type: Literal["tool_use"]
    id: Label
    name: str
    input: dict[str, Any]
    ignored = ("caller",)


class ToolResultBlock(Strict):
    """What a tool has returned. With `is_error`, the model reads "Error: " before it."""

    type: Literal["tool_result"]
    tool_use_id: Label
    content: responses.Content = Field(default_factory=list)
    is_error: bool | None = None


Blocks = Items[Annotated[TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock, ByType()]]


class InputMessage(Strict):
    """One turn."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[Blocks, or_text(Blocks, lambda text: {"type": "text", "text": text})]


class CustomTool(Strict):
    """A tool of the client. Anthropic's own ones have another type."""

    type: Literal["custom"] = "custom"
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    input_schema: dict[str, Any]


class ToolChoice(Strict):
    """Whether a tool must be used."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Strict):
    """Whether to think, where the template knows how to ask for it. A budget cannot be set."""

    type: Literal["enabled", "disabled", "adaptive"]


class OutputConfig(responses.ReasoningOptions):
    """`format`: the schema that the text follows."""

    format: responses.TextFormat | None = None


class CountTokensRequest(Strict):
    """What makes up a prompt."""

    model: str
    messages: Annotated[Items[InputMessage], Field(min_length=1)]
    system: responses.Content | None = None
    tools: Annotated[list[CustomTool], Field(fail_fast=True, max_length=128)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    unsupported = dict.fromkeys(("mcp_servers", "container"), NOTHING) | {"thread": ()}


class MessagesRequest(CountTokensRequest):
    """`max_tokens` is required, as by Anthropic, and may be more than there is room for."""

    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: StopTexts | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    ignored = ("metadata",)


def as_chat(body: CountTokensRequest) -> ChatRequest:
    """The request as one to /v1/chat/completions. ApiError naming the field that is wrong."""
    thinks = None if body.thinking is None else body.thinking.type != "disabled"
    config, choice = body.output_config or OutputConfig(), body.tool_choice
    tools = [
        responses.FunctionTool.model_construct(
            name=tool.name, description=tool.description, parameters=tool.input_schema
        )
        for tool in body.tools or ()
    ]
    asked = responses.ResponsesRequest.model_construct(
        **{name: getattr(body, name, None) for name in SAME},
        instructions=None if body.system is None else BILLING.sub("", responses.text_of(body.system)),
        stop=getattr(body, "stop_sequences", None) or None,
        tools=tools,
        tool_choice=_choice(choice),
        parallel_tool_calls=not (choice and choice.disable_parallel_tool_use),
        reasoning=responses.ReasoningOptions(effort="none") if thinks is False else config,
        text=responses.TextOptions.model_construct(format=config.format),
        chat_template_kwargs=dict.fromkeys(("enable_thinking", "thinking"), True) if thinks else None,
    )
    return responses.chat_of(asked, [item for message in body.messages for item in _items(message)])


def _choice(choice: ToolChoice | None) -> str | dict[str, Any] | None:
    if choice is None:
        return None
    if choice.type != "tool":
        return CHOICES[choice.type]
    refuse_if(choice.name is None, "tool_choice.name", "belongs to the type 'tool'")
    return {"type": "function", "name": choice.name}


def _items(message: InputMessage) -> list[Any]:
    """A turn as items of /v1/responses."""
    items = list[Any]()
    for block in message.content:
        if isinstance(block, responses.TextPart):
            if not (items and isinstance(items[-1], responses.MessageItem)):
                items.append(responses.MessageItem(role=message.role, content=[]))
            items[-1].content.append(block)
        elif isinstance(block, ThinkingBlock):
            thought = responses.TextPart(type="reasoning_text", text=block.thinking)
            items.append(responses.ReasoningItem.model_construct(content=[thought]))
        elif isinstance(block, ToolUseBlock):
            text, call = json.dumps(block.input, ensure_ascii=False), responses.FunctionCallItem
            items.append(call.model_construct(call_id=block.id, name=block.name, arguments=text))
        else:
            output, result = block.content, responses.FunctionCallOutputItem
            if block.is_error:
                output = [responses.TextPart(type="text", text=f"Error: {responses.text_of(output)}")]
            items.append(result.model_construct(call_id=block.tool_use_id, output=output))
    return items
