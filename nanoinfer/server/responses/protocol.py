"""The body of /v1/responses: OpenAI's fields, and those of SamplingParams; and what it is as one of
/v1/chat/completions. What needs a service behind the model (hosted tools, files, images, conversations, work in the
background) is refused by its name."""

from base64 import b64decode
from collections.abc import Sequence
from reprlib import repr as repr_in_short
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from nanoinfer.server import protocol as chat
from nanoinfer.server.errors import bad_request, refuse_if
from nanoinfer.server.protocol import ByType, Few, Items, Label, Strict, note_ignored, or_text

LOGPROBS = "message.output_text.logprobs"
NAMES = {  # chat's → ours
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format.json_schema": "text.format.schema",
    "response_format": "text.format",
}
SAME = ("model", "stream", "parallel_tool_calls", "chat_template_kwargs", "cache_salt")


class TextPart(Strict):
    """Text of an input, an output or a thought, as clients got it: the other fields mean nothing to the model."""

    type: Literal["input_text", "output_text", "text", "reasoning_text", "summary_text"]
    text: str
    ignored = ("citations", "annotations", "logprobs")


class RefusalPart(Strict):
    """What another model said instead of an answer."""

    type: Literal["refusal"]
    refusal: str


Parts = Items[Annotated[TextPart | RefusalPart, ByType()]]
Content = Annotated[Parts, or_text(Parts, lambda text: {"type": "input_text", "text": text})]


class AnyItem(Strict):
    """What all items have."""

    id: Label | None = None
    status: Label | None = None


class MessageItem(AnyItem):
    """One turn: what somebody said."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    phase: Label | None = None


class FunctionCallItem(AnyItem):
    """A call that the model has written; `call_id` is repeated by its output."""

    type: Literal["function_call"]
    call_id: Label
    name: str
    arguments: str
    namespace: str | None = None


class FunctionCallOutputItem(AnyItem):
    """What a function has returned."""

    type: Literal["function_call_output"]
    call_id: Label
    output: Content


class ReasoningItem(AnyItem):
    """What the model thought. `encrypted_content`: the same for clients that hand back nothing else; see `thought_of`."""

    type: Literal["reasoning"]
    summary: Items[TextPart] | None = None
    content: Items[TextPart] | None = None
    encrypted_content: str | None = None


class ItemReference(Strict):
    """An item of a stored response, by its id."""

    type: Literal["item_reference"]
    id: Label


Item = Annotated[
    MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem | ItemReference, ByType(default="message")
]
Input = Annotated[
    Items[Item], Field(min_length=1), or_text(Items[Item], lambda text: {"role": "user", "content": text})
]


class FunctionTool(chat.Function):
    """A function that the model may call."""

    type: Literal["function"]
    strict: bool | None = None
    unsupported = dict.fromkeys(("defer_loading", "async"), (False,))


class NamespaceTool(Strict):
    """Functions of one kind. To the model, each is called NAMESPACE__NAME."""

    type: Literal["namespace"]
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    tools: Few[FunctionTool]


AnyTool = Annotated[FunctionTool | NamespaceTool, ByType()]


class TextFormat(Strict):
    """What the text must be. `strict` changes nothing: outputs always follow the schema exactly."""

    type: Literal["text", "json_object", "json_schema"]
    name: Label | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    description: str | None = None
    strict: bool | None = None


class TextOptions(Strict):
    """`verbosity` is a hint that local models do not know."""

    format: TextFormat | None = None
    ignored = ("verbosity",)


class ReasoningOptions(Strict):
    """`effort` goes to templates that know it. Thoughts are sent as they are, so that `summary` has nothing to choose."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    ignored = ("summary", "generate_summary")


def without_search(tools: Any) -> Any:
    """Tools without OpenAI's own search, where a client offers it among others, as Codex does: the model would not call it.
    By itself it is asked for, and stays, to be refused."""
    if not isinstance(tools, list):
        return tools
    kept = [tool for tool in tools if not (isinstance(tool, dict) and tool.get("type") == "web_search")]
    if kept and len(kept) < len(tools):
        note_ignored("tools: web_search")
    return kept or tools


class ResponsesRequest(chat.OpenAIFields):
    """`input`: a text or items. `previous_response_id`: of a stored response, whose conversation goes on."""

    input: Input
    instructions: str | None = None
    previous_response_id: Label | None = None
    store: bool | None = None
    tools: Annotated[Few[AnyTool] | None, BeforeValidator(without_search)] = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    max_output_tokens: int | None = None
    top_logprobs: int | None = None
    include: Items[Label] | None = None
    metadata: Annotated[dict[Label, Annotated[str, Field(max_length=512)]], Field(max_length=16)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    truncation: Label | None = None
    ignored = ("service_tier",)
    unsupported = chat.UNSUPPORTED | {
        "background": (False,),
        "context_management": ([],),
        **dict.fromkeys(("conversation", "prompt", "max_tool_calls", "moderation"), ()),
        # what /v1/chat/completions calls by another name
        **dict.fromkeys(("max_tokens", "response_format", "messages", "reasoning_effort"), ()),
    }


Functions = list[tuple[str, tuple[str | None, FunctionTool]]]


def chat_of(body: ResponsesRequest, items: Sequence[Any]) -> chat.ChatRequest:
    """The request as one to /v1/chat/completions. ApiError naming the field that is wrong."""
    refuse_if(body.n not in (None, 1), "n", "must be 1: a response has one answer", body.n)
    why, cuts = "is not supported: must be 'disabled'", body.truncation
    refuse_if(cuts not in (None, "disabled"), "truncation", why, cuts, "unsupported_field")
    functions = functions_of(body)
    choice, allowed = _choice(body, functions)
    tools = [
        chat.Tool(function={"name": name, "description": each.description, "parameters": each.parameters})  # type: ignore[arg-type]
        for name, (_, each) in functions
        if name in allowed
    ]
    logprobs = bool(body.top_logprobs) or LOGPROBS in (body.include or ())
    return chat.ChatRequest.model_construct(
        **{name: getattr(body, name) for name in (*chat.SamplingFields.model_fields, *SAME) if name != "n"},
        messages=messages_of(items, body.instructions),
        tools=tools or None,
        tool_choice=choice,
        response_format=_response_format(body),
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
        max_tokens=body.max_output_tokens,
        logprobs=logprobs,
        top_logprobs=body.top_logprobs if logprobs else None,
    )


def messages_of(items: Sequence[Any], instructions: str | None) -> list[chat.Message]:
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
    return [chat.Message(**message) for message in messages]


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


def _response_format(body: ResponsesRequest) -> chat.ResponseFormat | None:
    if body.text is None or (given := body.text.format) is None:
        return None
    schema = None if given.schema_ is None else chat.NamedSchema.model_construct(schema_=given.schema_)
    return chat.ResponseFormat.model_construct(type=given.type, json_schema=schema)
