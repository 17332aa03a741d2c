"""The bodies of requests to /v1/completions and /v1/chat/completions: OpenAI's fields, and vLLM's and SGLang's."""

from typing import Annotated, Any

from pydantic import Field, ModelWrapValidatorHandler, PrivateAttr, WithJsonSchema, model_validator

from nanoinfer.server.fields import Elsewhere, Items, Label, Strict

Stop = Annotated[
    Any,
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]}),
]
JsonSchema = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "string"}, {"type": "null"}]})]

# Fields of OpenAI, vLLM and SGLang that would change an answer, and cannot: why, and the values that ask for nothing.
UNSUPPORTED = {
    "best_of": Elsewhere("use n and logprobs, and choose yourself", (None, 1)),
    "suffix": Elsewhere("text is only continued", (None, "")),
    "functions": Elsewhere("use tools", (None, [])),
    "function_call": Elsewhere("use tools and tool_choice", (None, "none", "auto")),
    "modalities": Elsewhere("only text is generated", (None, ["text"])),
    "web_search_options": Elsewhere("the model has no tools of its own", (None,)),
    "use_beam_search": Elsewhere("beam search is not implemented", (None, False)),
    "bad_words": Elsewhere("use logit_bias", (None, [])),
    "allowed_token_ids": Elsewhere("use logit_bias", (None,)),
    "truncate_prompt_tokens": Elsewhere("prompts are never truncated", (None,)),
    "add_special_tokens": Elsewhere("give token ids to choose each token yourself", (None, True)),
    "guided_whitespace_pattern": Elsewhere("JSON is written without whitespace", (None,)),
    "logits_processors": Elsewhere("use logit_bias", (None, [])),
    "custom_logit_processor": Elsewhere("use logit_bias", (None,)),
    "return_tokens_as_token_ids": Elsewhere("use return_token_ids", (None, False)),
    "stop_regex": Elsewhere("use stop, which takes texts", (None, [])),
    "no_stop_trim": Elsewhere("use include_stop_str_in_output", (None, False)),
    "lora_path": Elsewhere("use the adapter's name as model", (None,)),
    "prompt_embeds": Elsewhere("give text or token ids", (None,)),
    # names of SamplingParams, which takes them, and of transformers
    "sampling_params": Elsewhere("give its fields beside model", (None, {})),
    "sampling_seed": Elsewhere("use seed", (None,)),
    "stop_strs": Elsewhere("use stop", (None, [])),
    "guided_decoding": Elsewhere("use structured_outputs", (None,)),
    "structural_tag": Elsewhere("use tools or structured_outputs", (None,)),
    **dict.fromkeys(("max_completion_tokens", "max_length"), Elsewhere("use max_tokens", (None,))),
    **dict.fromkeys(("num_beams", "beam_width"), Elsewhere("beam search is not implemented", (None, 1))),
    "do_sample": Elsewhere("use temperature; 0 always takes the likeliest token", (None, True)),
}
OWN_TEMPLATE = Elsewhere("the model's own template is used", (None,))
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_TEXT = {"type": "string", "minLength": 1}
Prompts = Annotated[
    Any, WithJsonSchema({"anyOf": [_TEXT, _IDS, {"type": "array", "items": {"anyOf": [_TEXT, _IDS]}, "minItems": 1}]})
]


class StreamOptions(Strict):
    """`include_usage`: one more chunk before the end has the usage."""

    include_usage: bool | None = None


class StructuredOutputs(Strict):
    """vLLM's way to say what the output must match."""

    json_: JsonSchema = Field(default=None, alias="json")
    regex: str | None = None
    choice: Items[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    unsupported = {  # noqa: RUF012
        "disable_additional_properties": Elsewhere("write it into the schema", (None, False)),
        "whitespace_pattern": Elsewhere("JSON is written without whitespace", (None,)),
        "structural_tag": Elsewhere("use json, regex, choice or grammar", (None,)),
    }


class NamedSchema(Strict):
    """A JSON schema and its name. `strict` changes nothing: outputs always follow the schema exactly."""

    name: str
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """OpenAI's way: `text`, `json_object`, or `json_schema` with a schema."""

    type: str
    json_schema: NamedSchema | None = None
    unsupported = {"schema": Elsewhere("use the type json_schema", (None,))}  # noqa: RUF012


class GenerationFields(Strict):
    """What both endpoints take. None is the same as absent. Ranges are those of SamplingParams."""

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    seed: int | None = None
    stop: Stop = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    response_format: ResponseFormat | None = None
    user: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    # vLLM's and SGLang's
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Items[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    guided_json: JsonSchema = None
    guided_regex: str | None = None
    guided_choice: Items[str] | None = None
    guided_grammar: str | None = None
    json_schema: JsonSchema = None
    regex: str | None = None
    ebnf: str | None = None
    choice: Items[str] | None = None
    grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None
    cache_salt: Label | None = None
    return_token_ids: bool | None = None
    unsupported = UNSUPPORTED

    @property
    def include_usage(self) -> bool:
        """True when the stream ends with its usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class CompletionRequest(GenerationFields):
    """`prompt`: text, token ids, or a list of these. `max_tokens` absent: 16. `echo`: an answer begins with its prompt."""

    prompt: Prompts
    echo: bool | None = None
    logprobs: int | None = None


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
