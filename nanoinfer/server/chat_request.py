"""The body of a request to /v1/chat/completions, and its messages as a chat template takes them."""

import json
from typing import Annotated, Any

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from nanoinfer.requests.keywords import Elsewhere
from nanoinfer.server.errors import bad_request
from nanoinfer.server.fields import MOST_ITEMS, OWN_TEMPLATE, UNSUPPORTED, GenerationFields, Items, Strict


class FunctionCall(Strict):
    """The function that the model called, and its arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(Strict):
    """One call in an assistant's message."""

    function: FunctionCall
    type: str = "function"
    id: str | None = None
    index: int | None = None


class Message(Strict):
    """One turn of a conversation. Roles are the template's."""

    role: str
    content: str | Items[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: Items[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    unsupported = {  # noqa: RUF012
        "audio": Elsewhere("only text is understood", (None,)),
        "function_call": Elsewhere("use tool_calls", (None,)),
    }


def _few_calls(messages: Any) -> Any:
    """As for Items: the calls of all messages are counted before they are looked at."""
    counts = [
        len(calls)
        for each in (messages if isinstance(messages, list) else ())
        if isinstance(each, dict) and isinstance(calls := each.get("tool_calls"), list)
    ]
    if sum(counts) > MOST_ITEMS:
        raise PydanticCustomError("too_many", "must not have more than {most} tool calls in all", {"most": MOST_ITEMS})
    return messages


Messages = Annotated[Items[Message], BeforeValidator(_few_calls)]


class Function(Strict):
    """A function that the model may call. `parameters`: a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """A tool; only functions are known."""

    function: Function
    type: str = "function"


class ChatRequest(GenerationFields):
    """`max_tokens` and `max_completion_tokens` absent: the rest of the context."""

    messages: Messages
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: Items[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: Items[dict[str, Any]] | None = None
    unsupported = UNSUPPORTED | {
        "add_special_tokens": Elsewhere("the chat template adds what it needs", (None, False)),
        "echo": Elsewhere("use continue_final_message", (None, False)),
        "chat_template": OWN_TEMPLATE,
        "chat_template_content_format": Elsewhere("content is text or a list of text parts", (None, "auto", "string")),
        "include_reasoning": Elsewhere("the whole text is in content", (None, True)),
    }


def plain_messages(messages: list[Message]) -> list[dict[str, Any]]:
    """Messages as a template takes them: the arguments of tool calls are objects. ApiError if they are no JSON."""
    plain = []
    for i, message in enumerate(messages):
        fields = {"content": message.content, **message.model_dump(exclude_none=True)}
        for j, call in enumerate(fields.get("tool_calls", [])):
            where = f"messages[{i}].tool_calls[{j}].function.arguments"
            try:
                arguments = json.loads(call["function"]["arguments"] or "{}")
            except (ValueError, RecursionError):
                raise bad_request(f"{where}: must be JSON", where) from None
            if not isinstance(arguments, dict):
                raise bad_request(f"{where}: must be a JSON object", where)
            call["function"]["arguments"] = arguments
        plain.append(fields)
    return plain
