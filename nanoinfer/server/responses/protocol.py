"""The body of /v1/responses: OpenAI's fields, and those of SamplingParams. What needs a service behind the model (hosted
tools, files, images, conversations, work in the background) is refused by its name."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from nanoinfer.server.protocol import UNSUPPORTED, Items, Label, SamplingFields, StreamOptions, Strict, without_search

TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
ITEMS = ("message", "function_call", "function_call_output", "reasoning", "item_reference")


# Tags are in brackets, because a path to a field that is wrong has no part with one (`errors.py`).
def _part_tag(part: Any) -> str:
    return "[text]" if type_of(part) in TEXTS else "[refusal]"


def _item_tag(item: Any) -> str:
    return f"[{type_of(item) or 'message'}]"


def text_or_list(value: Any) -> str:
    """The tag of content that is text, or a list of parts."""
    return "[text]" if isinstance(value, str) else "[list]"


def type_of(value: Any) -> Any:
    """The type that an item or a part says that it has."""
    return value.get("type") if isinstance(value, dict) else getattr(value, "type", None)


def tag_of(value: Any) -> str:
    """The tag of an item, a part or a tool, by its type."""
    return f"[{type_of(value)}]"


def one_of(*types: str | None) -> BeforeValidator:
    """Refuse other items or parts, such as images, and names their type."""
    known = ", ".join(name for name in types if name)

    def check(value: Any) -> Any:
        if isinstance(value, dict) and value.get("type") not in types:
            raise PydanticCustomError(
                "unsupported", "is not supported; known are {known}", {"field": "type", "known": known}
            )
        return value

    return BeforeValidator(check)


class TextPart(Strict):
    """Text of an input, an output or a thought, as clients got it: the other fields mean nothing to the model."""

    type: Literal["input_text", "output_text", "text", "reasoning_text", "summary_text"]
    text: str
    citations: Annotated[Items[Any] | None, Field(exclude=True)] = None
    annotations: Annotated[Items[Any] | None, Field(exclude=True)] = None
    logprobs: Annotated[list[Any] | None, Field(exclude=True)] = None  # one per token: there may be more than Items


class RefusalPart(Strict):
    """What another model said instead of an answer."""

    type: Literal["refusal"]
    refusal: str


Part = Annotated[
    Annotated[TextPart, Tag("[text]")] | Annotated[RefusalPart, Tag("[refusal]")],
    Discriminator(_part_tag),
    one_of(*TEXTS, "refusal"),
]
Content = Annotated[
    Annotated[str, Tag("[text]")] | Annotated[Items[Part], Tag("[list]")],
    Discriminator(text_or_list),
]


class MessageItem(Strict):
    """One turn: what somebody said."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    id: Label | None = None
    status: Label | None = None
    phase: Label | None = None


class FunctionCallItem(Strict):
    """A call that the model has written; `call_id` is repeated by its output."""

    type: Literal["function_call"]
    call_id: Label
    name: str
    arguments: str
    namespace: str | None = None
    id: Label | None = None
    status: Label | None = None


class FunctionCallOutputItem(Strict):
    """What a function has returned."""

    type: Literal["function_call_output"]
    call_id: Label
    output: Content
    id: Label | None = None
    status: Label | None = None


class ReasoningItem(Strict):
    """What the model thought. `encrypted_content`: the same for clients that hand back nothing else; see `thought_of`."""

    type: Literal["reasoning"]
    summary: Items[TextPart] | None = None
    content: Items[TextPart] | None = None
    encrypted_content: str | None = None
    id: Label | None = None
    status: Label | None = None


class ItemReference(Strict):
    """An item of a stored response, by its id."""

    type: Literal["item_reference"]
    id: Label


Item = Annotated[
    Annotated[MessageItem, Tag("[message]")]
    | Annotated[FunctionCallItem, Tag("[function_call]")]
    | Annotated[FunctionCallOutputItem, Tag("[function_call_output]")]
    | Annotated[ReasoningItem, Tag("[reasoning]")]
    | Annotated[ItemReference, Tag("[item_reference]")],
    Discriminator(_item_tag),
    one_of(*ITEMS, None),
]
Input = Annotated[
    Annotated[str, Tag("[text]")] | Annotated[Items[Item], Field(min_length=1), Tag("[list]")],
    Discriminator(text_or_list),
]


class FunctionTool(Strict):
    """A function that the model may call."""

    type: Literal["function"]
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {"defer_loading": (False,), "async": (False,)}


class NamespaceTool(Strict):
    """Functions of one kind. To the model, each is called NAMESPACE__NAME."""

    type: Literal["namespace"]
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    tools: Annotated[list[FunctionTool], Field(fail_fast=True, max_length=128)]


AnyTool = Annotated[
    Annotated[FunctionTool, Tag("[function]")] | Annotated[NamespaceTool, Tag("[namespace]")],
    Discriminator(tag_of),
    one_of("function", "namespace"),
]


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
    verbosity: Label | None = None


class ReasoningOptions(Strict):
    """`effort` goes to templates that know it. Thoughts are sent as they are, so that `summary` has nothing to choose."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Label | None = None
    generate_summary: Label | None = None


class ResponsesRequest(SamplingFields):
    """`input`: a text or items. `previous_response_id`: of a stored response, whose conversation goes on."""

    model: str
    input: Input
    instructions: str | None = None
    previous_response_id: Label | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: Annotated[
        Annotated[list[AnyTool], Field(fail_fast=True, max_length=128)] | None, BeforeValidator(without_search)
    ] = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    max_output_tokens: int | None = None
    top_logprobs: int | None = None
    include: Items[Label] | None = None
    metadata: Annotated[dict[Label, Annotated[str, Field(max_length=512)]], Field(max_length=16)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: Label | None = None
    user: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    service_tier: Label | None = None
    truncation: Label | None = None
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = UNSUPPORTED | {
        **dict.fromkeys(("background",), (False,)),
        **dict.fromkeys(("conversation", "prompt", "max_tool_calls", "moderation"), ()),
        **dict.fromkeys(("context_management",), ([],)),
        # what /v1/chat/completions calls by another name
        **dict.fromkeys(("max_tokens", "response_format", "messages", "reasoning_effort"), ()),
    }
