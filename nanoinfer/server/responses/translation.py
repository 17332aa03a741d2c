"""From /v1/responses to the path of /v1/chat/completions: items as messages, the request as a ChatRequest, and errors that
name the client's own fields."""

import re
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from reprlib import repr as repr_in_short
from typing import Any
from uuid import uuid4

from pydantic import TypeAdapter

from nanoinfer.server.errors import ApiError, bad_request
from nanoinfer.server.generation import GenerationRequest
from nanoinfer.server.protocol import ChatRequest, Message, ResponseFormat, SamplingFields, Tool
from nanoinfer.server.request_parsing import Tools, chat_request, tools_of
from nanoinfer.server.responses.protocol import (
    Content,
    FunctionCallItem,
    FunctionCallOutputItem,
    FunctionTool,
    Item,
    ItemReference,
    MessageItem,
    ReasoningItem,
    ResponsesRequest,
    TextPart,
)
from nanoinfer.server.responses.store import ResponseStore
from nanoinfer.server.service import Service

LOGPROBS = "message.output_text.logprobs"
NAMES = {"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text.format"}  # chat's → ours
SAME = ("model", "stream", "parallel_tool_calls", "chat_template_kwargs", "cache_salt")
PREFIXES = {
    "response": "resp",
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
}
Functions = list[tuple[str, tuple[str | None, FunctionTool]]]
_STORED: TypeAdapter[list[Any]] = TypeAdapter(list[Item])


def conversation_of(store: ResponseStore, body: ResponsesRequest) -> list[Any]:
    """All items before the answer: those of the previous response, then the input. ApiError (404) where one is
    not stored."""
    items = list[Any]()
    if body.previous_response_id is not None:
        items += _STORED.validate_json(store.get(body.previous_response_id, "previous_response_id").items)
    if isinstance(body.input, str):
        return [*items, MessageItem(role="user", content=body.input)]
    for i, item in enumerate(body.input):
        if isinstance(item, ItemReference):
            (item,) = _STORED.validate_python([store.item(item.id, f"input[{i}].id")])
        items.append(item)
    return items


def as_stored(item: Any) -> dict[str, Any]:
    """An item as clients get it back: with an id, and parts as its content."""
    plain = item.model_dump(exclude_none=True)
    plain.setdefault("id", new_id(item.type))
    if isinstance(item, ReasoningItem):
        return {"summary": [], **plain}
    if isinstance(item, MessageItem):
        kind = {"type": "output_text", "annotations": []} if item.role == "assistant" else {"type": "input_text"}
        parts = [{"text": item.content}] if isinstance(item.content, str) else plain["content"]
        plain["content"] = [part if "refusal" in part else {**part, **kind} for part in parts]
    return {"status": "completed", **plain}


def new_id(kind: str) -> str:
    """An id for an item of this type."""
    return f"{PREFIXES[kind]}_{uuid4().hex}"


def chat_of(body: ResponsesRequest, items: Sequence[Any]) -> ChatRequest:
    """The request as one to /v1/chat/completions. ApiError naming the field that is wrong."""
    if body.n not in (None, 1):
        raise bad_request(f"n={body.n}: must be 1: a response has one answer", "n")
    if body.truncation not in (None, "disabled"):
        message = f"truncation={repr_in_short(body.truncation)}: is not supported: must be 'disabled'"
        raise bad_request(message, "truncation", "unsupported_field")
    functions = functions_of(body)
    choice, allowed = _choice(body, functions)
    tools = [
        {"name": name, "description": each.description, "parameters": each.parameters, "strict": each.strict}
        for name, (_, each) in functions
        if name in allowed
    ]
    logprobs = bool(body.top_logprobs) or LOGPROBS in (body.include or ())
    return ChatRequest.model_construct(
        **{name: getattr(body, name) for name in (*SamplingFields.model_fields, *SAME) if name != "n"},
        messages=messages_of(items, body.instructions),
        tools=[Tool.model_validate({"function": tool}) for tool in tools] or None,
        tool_choice=choice,
        response_format=_response_format(body),
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
        max_tokens=body.max_output_tokens,
        logprobs=logprobs,
        top_logprobs=body.top_logprobs if logprobs else None,
    )


def messages_of(items: Sequence[Any], instructions: str | None) -> list[Message]:
    """The items as messages. What a model has thought, said and called in one turn is one message. `instructions` and the
    system's first messages are one, too: many templates take only one."""
    messages = list[dict[str, Any]]()
    for item in items:
        if isinstance(item, FunctionCallOutputItem):
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": text_of(item.output)})
        elif isinstance(item, MessageItem) and item.role != "assistant":
            messages.append({"role": item.role, "content": text_of(item.content)})
        else:
            if not (messages and _continues(messages[-1], item)):
                messages.append({"role": "assistant", "content": None})
            _add(messages[-1], item)
    systems = [] if instructions is None else [{"role": "system", "content": instructions}]
    while messages and messages[0]["role"] in ("system", "developer"):
        systems.append(messages.pop(0))
    if systems:
        messages.insert(0, {**systems[0], "content": "\n\n".join(each["content"] for each in systems)})
    return [Message(**message) for message in messages]


def _continues(turn: dict[str, Any], item: Any) -> bool:
    """Whether an item of the model belongs to the turn before it: a thought only begins one, and text ends a thought."""
    if turn["role"] != "assistant":
        return False
    if isinstance(item, FunctionCallItem):
        return True
    is_new = turn["content"] is None and "tool_calls" not in turn
    return is_new or (isinstance(item, MessageItem) and "tool_calls" in turn)


def _add(turn: dict[str, Any], item: Any) -> None:
    if isinstance(item, FunctionCallItem):
        function = {"name": _known_name(item.namespace, item.name), "arguments": item.arguments}
        turn.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": function})
    elif isinstance(item, MessageItem):
        turn["content"] = (turn["content"] or "") + text_of(item.content)
    elif thought := thought_of(item):
        turn["reasoning_content"] = turn.get("reasoning_content", "") + thought


def thought_of(item: ReasoningItem) -> str:
    """What the model thought. For clients that hand back only `encrypted_content`, that is the text in base64: opaque, as
    they expect it, but nothing is kept secret from them."""
    if item.content or not item.encrypted_content:
        return "".join(part.text for part in item.content or item.summary or ())
    try:
        return b64decode(item.encrypted_content, validate=True).decode()
    except ValueError:  # another server's
        return ""


def text_of(content: Content) -> str:
    """Content as text: parts are joined as /v1/chat/completions joins them."""
    if isinstance(content, str):
        return content
    return "\n".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)


def functions_of(body: ResponsesRequest) -> Functions:
    """All functions that may be called: the name by which the model knows it, and its namespace."""
    found: list[tuple[str | None, FunctionTool]] = []
    for tool in body.tools or ():
        found += [(None, tool)] if isinstance(tool, FunctionTool) else [(tool.name, each) for each in tool.tools]
    return [(_known_name(namespace, tool.name), (namespace, tool)) for namespace, tool in found]


def _known_name(namespace: str | None, name: str) -> str:
    return name if namespace is None else f"{namespace}__{name}"


def _choice(body: ResponsesRequest, functions: Functions) -> tuple[str | dict[str, Any] | None, set[str]]:
    """The choice as /v1/chat/completions has it, and the names of what may be called. ApiError for one that is none."""
    choice, names = body.tool_choice, {name for name, _ in functions}
    if not isinstance(choice, dict):
        return choice, names
    kind = choice.get("type")
    if kind == "function" and isinstance(choice.get("name"), str):
        return {"type": "function", "function": {"name": choice["name"]}}, names
    if kind == "allowed_tools" and isinstance(choice.get("tools"), list):
        allowed = {name for name in names if {"type": "function", "name": name} in choice["tools"]}
        return choice.get("mode", "auto"), allowed
    known = "'auto', 'none', 'required', {'type': 'function', 'name': ...} or {'type': 'allowed_tools', 'tools': [...]}"
    raise bad_request(f"tool_choice={repr_in_short(choice)}: must be {known}", "tool_choice")


def _response_format(body: ResponsesRequest) -> ResponseFormat | None:
    if body.text is None or (given := body.text.format) is None:
        return None
    if (given.type == "json_schema") != (given.schema_ is not None):
        raise bad_request("text.format.schema: belongs to the type json_schema, which needs it", "text.format.schema")
    named = None if given.schema_ is None else {"name": given.name or "schema", "schema": given.schema_}
    return ResponseFormat.model_validate({"type": given.type, "json_schema": named})


async def through_chat(
    service: Service, chat: ChatRequest, names: Mapping[str, str], at_most: int | None = None
) -> tuple[GenerationRequest, Tools]:
    """What the conversation asks for, and the tools that may be called. `names`: as for `renamed`. `at_most`: so many
    tokens, or as many as there is room for. ApiError naming a field of chat."""
    tools = tools_of(service, chat)
    request = await chat_request(service, chat, tools, at_most)
    field_names = {ours: names.get(theirs, theirs) for ours, theirs in request.field_names.items()}
    return replace(request, field_names={**names, **field_names}), tools


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """An ApiError speaks of the client's fields. `names`: chat's names → the client's, where they differ."""
    try:
        yield
    except ApiError as error:
        message, param = error.message, error.param or ""
        for ours, theirs in names.items():
            message = re.sub(rf"(?<![\w.'\"]){re.escape(ours)}(?![\w'\"])", theirs, message)
        raise ApiError(error.status, message, names.get(param, error.param), error.code, error.headers) from error
