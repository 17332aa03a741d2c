"""The body of a request to /v1/chat/completions, and its messages as a chat template takes them."""

from typing import Any

from pydantic import ModelWrapValidatorHandler, PrivateAttr, model_validator

from nanoinfer.requests.keywords import Elsewhere
from nanoinfer.server.fields import OWN_TEMPLATE, UNSUPPORTED, GenerationFields, Items, Strict


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


class Function(Strict):
    """A function that the model may call. `parameters`: a JSON schema. The model is not shown `strict`."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """A tool; only functions are known."""

    function: Function
    type: str = "function"
    _sent: dict[str, Any] = PrivateAttr()

    @model_validator(mode="wrap")
    @classmethod
    def _keep(cls, sent: Any, validate: ModelWrapValidatorHandler["Tool"]) -> "Tool":
        tool = validate(sent)
        tool._sent = sent
        return tool

    @property
    def definition(self) -> dict[str, Any]:
        """As the client wrote it, in its order, because models were trained on what it looks like."""

        def known(fields: dict[str, Any], model: type[Strict]) -> dict[str, Any]:
            names = model.model_fields.keys() - {"strict"}
            return {name: value for name, value in fields.items() if name in names and value is not None}

        return {**known(self._sent, Tool), "function": known(self._sent["function"], Function)}


class ChatRequest(GenerationFields):
    """`max_tokens` and `max_completion_tokens` absent: the rest of the context."""

    messages: Items[Message]
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
    """Messages as render_chat takes them. It tells content that is null from content that is missing."""
    return [
        dict.fromkeys(message.model_fields_set & {"content"}) | message.model_dump(exclude_none=True)
        for message in messages
    ]
