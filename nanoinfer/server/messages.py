"""/v1/messages: Anthropic's fields, and what they are as a request to /v1/responses; and what it answers: blocks of text,
thoughts and calls, and the events that tell how they come to be. Images, documents and hosted tools are refused by their
type."""

import json
import re
from typing import Annotated, Any, Literal

from pydantic import Field

from nanoinfer.outputs import CompletionOutput, RequestOutput, StreamPiece
from nanoinfer.requests.tool_calls.cursor import Arguments, CallBegin, CallEnd, Part, Text
from nanoinfer.server.chat_formatter import Replies
from nanoinfer.server.errors import ApiError, refuse_if
from nanoinfer.server.formatter import ResponseFormatter, dumps, reason_in
from nanoinfer.server.generation import Generation, GenerationRequest
from nanoinfer.server.protocol import NOTHING, ByType, ChatRequest, Few, Items, Label, StopTexts, Strict, or_text
from nanoinfer.server.responses import protocol as responses
from nanoinfer.server.responses.store import new_id
from nanoinfer.server.service import Service

NAMES = {  # of chat, or of /v1/responses → ours
    "response_format.json_schema": "output_config.format.schema",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
}
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
SAME = ("model", "stream", "temperature", "top_p", "top_k", "stop")
BILLING = re.compile(r"x-anthropic-billing-header:[^\n]*\n?")  # of Claude Code: it differs in each request
DIRECT = {"caller": {"type": "direct"}}  # the model itself
NO_USAGE = dict.fromkeys(("cache_creation", "inference_geo", "server_tool_use", "service_tier"))  # known
CONTEXT_IS_FULL = "model_context_window_exceeded"  # Anthropic's words
# Of a block: how it begins, and the type of its deltas and the field with their text.
TEXT = {"type": "text", "text": "", "citations": []}, "text_delta", "text"
THINKING = {"type": "thinking", "thinking": "", "signature": ""}, "thinking_delta", "thinking"


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


class ToolResultBlock(responses.FunctionCallOutputItem):
    """What a tool has returned. With `is_error`, the model reads "Error: " before it."""

    type: Literal["tool_result"]  # type: ignore[assignment]
    call_id: Label = Field(alias="tool_use_id")
    output: responses.Content = Field(default_factory=list, alias="content")
    is_error: bool | None = None


Blocks = Items[Annotated[TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock, ByType()]]


class InputMessage(Strict):
    """One turn."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[Blocks, or_text(Blocks, lambda text: {"type": "text", "text": text})]


class CustomTool(responses.FunctionTool):
    """A tool of the client. Anthropic's own ones have another type."""

    type: Literal["custom"] = "custom"  # type: ignore[assignment]
    parameters: dict[str, Any] = Field(alias="input_schema")
    ignored = ("defer_loading",)


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
    tools: Few[Annotated[CustomTool, ByType(default="custom")]] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    unsupported = dict.fromkeys(("mcp_servers", "container"), NOTHING) | {"thread": ()}


class MessagesRequest(CountTokensRequest):
    """`max_tokens` is required, as by Anthropic, and may be more than there is room for."""

    max_tokens: Annotated[int, Field(ge=1)]
    stop: StopTexts | None = Field(default=None, alias="stop_sequences")
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    ignored = ("metadata",)


def as_chat(body: CountTokensRequest) -> ChatRequest:
    """The request as one to /v1/chat/completions. ApiError naming the field that is wrong."""
    thinks = None if body.thinking is None else body.thinking.type != "disabled"
    config, choice = body.output_config or OutputConfig(), body.tool_choice
    asked = responses.ResponsesRequest.model_construct(
        **{name: getattr(body, name, None) for name in SAME},
        instructions=None if body.system is None else BILLING.sub("", responses.text_of(body.system)),
        tools=body.tools,
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
            if block.is_error:
                block.output = [responses.TextPart(type="text", text=f"Error: {responses.text_of(block.output)}")]
            items.append(block)
    return items


class MessagesFormatter(ResponseFormatter):
    """One message of blocks. An answer that is not streamed has the same blocks."""

    def __init__(self, service: Service, body: MessagesRequest, request: GenerationRequest, request_id: str):
        super().__init__(service, request, request_id)
        self.answer_id = new_id("message")  # a client chooses request ids: it may use one twice
        self._replies = Replies(service, request)
        self._request_id, self._max_tokens, self._has_begun = request_id, body.max_tokens, False
        self._content: list[dict[str, Any]] = []
        self._is_open, self._arguments = False, ""
        self._end: dict[str, Any] = dict.fromkeys(("stop_reason", "stop_sequence", "stop_details", "container"))

    def choice_events(self, i: int, piece: StreamPiece) -> str:
        begin = "" if self._has_begun else _event("message_start", message=self._message(piece.cached_tokens, 0))
        self._has_begun = True
        return begin + self._read(piece)

    def whole(self, generation: Generation, outputs: list[RequestOutput]) -> dict[str, Any]:
        ((_, completion),) = self.completions(outputs)
        self._read(completion)
        return self._message(generation.cached_tokens, generation.output_tokens * self.request.copies)

    def last_events(self, generation: Generation, error: ApiError | None) -> str:
        if error is not None:
            return f"event: error\ndata: {dumps(error.anthropic_content(self._request_id))}\n\n"
        usage = self._usage(generation.cached_tokens, generation.output_tokens * self.request.copies)
        return _event("message_delta", delta=self._end, usage=usage) + _event("message_stop")

    def _read(self, part: StreamPiece | CompletionOutput) -> str:
        """Add what a part of the completion brings, and return the events that tell it."""
        events = "".join(map(self._add, self._replies.read(0, part)))
        if (reason := reason_in(part)) is None:
            return events
        end = "tool_use" if self._replies.parsers[0].calls else "end_turn"
        if reason == "length":
            end = "max_tokens" if self.request.params.max_new_tokens == self._max_tokens else CONTEXT_IS_FULL
        elif isinstance(part.stop_reason, str):
            end, self._end["stop_sequence"] = "stop_sequence", part.stop_reason
        self._end["stop_reason"] = end
        return events + self._close()

    def _add(self, part: Part) -> str:
        if isinstance(part, CallBegin):
            self._arguments = ""
            return self._open({"type": "tool_use", "id": part.id, "name": part.name, "input": {}, **DIRECT})
        if isinstance(part, Arguments):
            self._arguments += part.text
            return self._delta("input_json_delta", "partial_json", part.text)
        if isinstance(part, CallEnd):
            return self._close()
        (block, kind, field), events = TEXT if isinstance(part, Text) else THINKING, ""
        if not (self._is_open and self._content[-1]["type"] == block["type"]):
            events = self._open(block)
        self._content[-1][field] += part.text
        return events + self._delta(kind, field, part.text)

    def _open(self, block: dict[str, Any]) -> str:
        """Begin a block, and end the one that is open, if one is."""
        before, self._is_open = self._close(), True
        self._content.append({**block})
        return before + _event("content_block_start", index=len(self._content) - 1, content_block=block)

    def _delta(self, kind: str, field: str, text: str) -> str:
        return _event("content_block_delta", index=len(self._content) - 1, delta={"type": kind, field: text})

    def _close(self) -> str:
        if not self._is_open:
            return ""
        self._is_open = False
        if self._content[-1]["type"] == "tool_use":
            self._content[-1]["input"] = _object(self._arguments)
        return _event("content_block_stop", index=len(self._content) - 1)

    def _message(self, cached: int, output: int) -> dict[str, Any]:
        kinds = {"type": "message", "role": "assistant", "model": self.request.model}
        usage = self._usage(cached, output)
        return {"id": self.answer_id, **kinds, "content": self._content, **self._end, "usage": usage}

    def _usage(self, cached: int, output: int) -> dict[str, Any]:
        """Anthropic's: `input_tokens` are those that were computed."""
        return {
            "input_tokens": self.request.prompt_tokens - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": output,
            "output_tokens_details": {"thinking_tokens": self._replies.reasoning_tokens},
            **NO_USAGE,
        }


def _event(kind: str, **fields: Any) -> str:
    return f"event: {kind}\ndata: {dumps({'type': kind, **fields})}\n\n"


def _object(arguments: str) -> dict[str, Any]:
    """Arguments as an object, which they must be here. Those that are none, or that JSON cannot say again (1e999), are the
    text in one, so that nothing is lost."""
    try:
        value = json.loads(arguments)
        dumps(value).encode()
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"arguments": arguments}
