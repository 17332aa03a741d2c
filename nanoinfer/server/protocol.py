"""The protocol's models: the bodies of all requests. OpenAI's fields, and vLLM's and SGLang's.

A body is read strictly: a field of `unsupported` is refused, and so is what looks like one of ours misspelt. Any other
unknown field is ignored, and logged once.
"""

import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, create_model, model_validator
from pydantic.json_schema import WithJsonSchema
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from nanoinfer.keywords import CLOSE, LONGEST
from nanoinfer.sampling_params import SamplingParams

logger = logging.getLogger("nanoinfer.server")
T = TypeVar("T")
MOST_FIELDS = 100  # of one object
MOST_ITEMS = 10_000  # in a list, however large the body may be

MOST_NOTED = 1000  # different names of fields: nobody may fill the log
_noted: set[str] = set()

Label = Annotated[str, Field(max_length=256)]  # what is only kept or repeated: the cache keeps salts, for example
# A list is read up to the first item that is wrong: pydantic would make an object for each one, which takes seconds.
Items = Annotated[list[T], Field(fail_fast=True, max_length=MOST_ITEMS)]
Few = Annotated[list[T], Field(fail_fast=True, max_length=128)]  # of tools
StopText = Annotated[str, Field(min_length=1, max_length=1000)]
StopTexts = Annotated[list[StopText], Field(fail_fast=True, max_length=64)]
TokenId = Annotated[int, Field(ge=0)]
TokenKey = Annotated[int, Field(ge=0, strict=False)]  # JSON's keys are text
JsonSchema = dict[str, Any] | str | None
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_TEXT = {"type": "string", "minLength": 1}
Prompts = Annotated[  # `prompts_of` says what is wrong with them
    Any, WithJsonSchema({"anyOf": [_TEXT, _IDS, {"type": "array", "items": {"anyOf": [_TEXT, _IDS]}, "minItems": 1}]})
]


def or_text(kind: Any, of: Callable[[str], Any]) -> BeforeValidator:
    """A text may be given in place of a list of this `kind`: that of the one thing that `of` makes of it."""
    return BeforeValidator(
        lambda value: [of(value)] if isinstance(value, str) else value, json_schema_input_type=str | kind
    )


class ByType:
    """Annotates a union of models: it is the one that has a value's `type`, or where that says none, `default`. Others are
    refused by their type."""

    def __init__(self, default: str | None = None):
        self._default = default

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        models = {
            kind: each
            for each in get_args(source) or [source]
            for kind in get_args(each.model_fields["type"].annotation)
        }
        # In brackets, because a path to a field that is wrong has no part with one (`errors.py`).
        choices = {f"[{kind}]": handler.generate_schema(model) for kind, model in models.items()}

        def choose(value: Any) -> str:
            return f"[{value.get('type', self._default)}]" if isinstance(value, dict) else next(iter(choices))

        return core_schema.tagged_union_schema(
            choices,
            choose,
            custom_error_type="unsupported",
            custom_error_message="is not supported; known are {known}",
            custom_error_context={"field": "type", "known": ", ".join(models)},
        )


# Fields of OpenAI, vLLM and SGLang that would change an answer, and cannot; with the values that ask for nothing.
NOTHING: tuple[object, ...] = (False, 0, "", [], {})
UNSUPPORTED: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("best_of", "num_beams", "beam_width"), (1,)),
    **dict.fromkeys(("suffix", "functions", "use_beam_search", "bad_words", "allowed_token_ids"), NOTHING),
    **dict.fromkeys(("truncate_prompt_tokens", "guided_whitespace_pattern", "web_search_options"), ()),
    **dict.fromkeys(("logits_processors", "custom_logit_processor", "return_tokens_as_token_ids"), NOTHING),
    **dict.fromkeys(("stop_regex", "no_stop_trim", "lora_path", "prompt_embeds", "sampling_params"), NOTHING),
    **dict.fromkeys(("sampling_seed", "max_completion_tokens", "max_length"), ()),
    **dict.fromkeys(("stop_strs", "guided_decoding", "structural_tag"), NOTHING),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "add_special_tokens": (True,),
    "do_sample": (True,),
}


def shown(name: str) -> str:
    """A name from a body as messages can quote it: short, and encodable as UTF-8."""
    return (name if len(name) <= 60 else f"{name[:60]}…").encode("utf-8", "backslashreplace").decode()


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The most similar of the `known` names, as the end of a sentence; empty if none is similar."""
    close = get_close_matches(name, list(known), n=1, cutoff=CLOSE) if len(name) <= LONGEST else []
    return f"; did you mean {close[0]!r}?" if close else ""


def _check_text(name: str, value: Any) -> None:
    """JSON can write half a surrogate pair (\\ud800), which no tokenizer could encode, and Python reads NaN."""
    try:
        (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)).encode()
    except UnicodeEncodeError:
        raise PydanticCustomError("not_utf8", "must be text that can be encoded as UTF-8", {"field": name}) from None
    except ValueError:
        raise PydanticCustomError("not_json", "must not have NaN or infinity in it", {"field": name}) from None
    except RecursionError:
        raise PydanticCustomError("too_deep", "has too many levels of lists and objects", {"field": name}) from None


def note_ignored(name: str) -> None:
    """Log a name that means nothing here, the first time."""
    if name not in _noted and len(_noted) < MOST_NOTED:
        _noted.add(name)
        logger.warning("ignored: the field %r, which means nothing here", shown(name))


class Strict(BaseModel):
    """A body, or part of one. Nothing is converted ("1" is no number; 1 is one, too, where 1.0 is expected). `unsupported`:
    fields that are refused, unless they are null, or have one of these values, of the same type. `ignored`: those that many
    clients send, and that change nothing here."""

    model_config = ConfigDict(strict=True, protected_namespaces=())
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    ignored: ClassVar[Collection[str]] = ()

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if len(data) > MOST_FIELDS:
            raise PydanticCustomError("too_many", "must not have more than {most} fields", {"most": MOST_FIELDS})
        known = {*cls.ignored, *(field.alias or name for name, field in cls.model_fields.items())}
        for name, value in data.items():
            harmless = cls.unsupported.get(name)
            if name in known:
                _check_text(name, value)
            elif harmless is not None:
                if value is not None and not any(type(value) is type(same) and value == same for same in harmless):
                    raise PydanticCustomError("unsupported", "is not supported", {"field": name})
            elif value is not None and (hint := did_you_mean(name, known)):
                raise PydanticCustomError("unknown", "no such field{hint}", {"hint": hint, "field": shown(name)})
            else:
                note_ignored(shown(name))
        return data


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
    unsupported = dict.fromkeys(("disable_additional_properties", "whitespace_pattern", "structural_tag"), (False,))


class NamedSchema(Strict):
    """A JSON schema and its name. `strict` changes nothing: outputs always follow the schema exactly."""

    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """OpenAI's way: `text`, `json_object`, or `json_schema` with a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    unsupported = {"schema": ()}


_OTHERWISE = {  # what the protocol says in another way
    *("max_new_tokens", "min_new_tokens", "logprobs", "prompt_logprobs", "prompt_top_logprobs", "parallel_tool_calls"),
}
# Numbers and truth values of SamplingParams: a new one is a field of all endpoints.
_plain: dict[str, Any] = {
    field.name: (field.type | None, None)
    for field in fields(SamplingParams)
    if field.type in (int, float, bool) and field.name not in _OTHERWISE
}
_PlainFields = create_model("_PlainFields", __base__=Strict, **_plain)


class SamplingFields(_PlainFields):  # type: ignore[misc, valid-type]
    """What all endpoints that generate take. None is the same as absent. Ranges are those of SamplingParams."""

    seed: int | None = None
    stop: Annotated[StopTexts | None, or_text(StopTexts | None, str)] = None
    stop_token_ids: Annotated[list[TokenId], Field(fail_fast=True, max_length=1024)] | None = None
    logit_bias: Annotated[dict[TokenKey, float], Field(max_length=1024)] | None = None
    json_schema: JsonSchema = None
    regex: str | None = None
    ebnf: str | None = None
    choice: Items[str] | None = None
    grammar: str | None = None
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = UNSUPPORTED


class OpenAIFields(SamplingFields):
    """What all of OpenAI's endpoints take."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: Label | None = None
    user: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None


class GenerationFields(OpenAIFields):
    """What /v1/completions and /v1/chat/completions take."""

    max_tokens: int | None = None
    min_tokens: int | None = None
    response_format: ResponseFormat | None = None
    prompt_logprobs: Annotated[int, Field(ge=0)] | None = None
    guided_json: JsonSchema = None
    guided_regex: str | None = None
    guided_choice: Items[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None
    return_token_ids: bool | None = None


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
    ignored = ("index",)


class Message(Strict):
    """One turn of a conversation. Roles are the template's."""

    role: str
    content: str | Items[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: Items[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    unsupported = {"audio": (), "function_call": ()}


class Function(Strict):
    """A function that the model may call. `parameters`: a JSON schema."""

    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    ignored = ("strict",)


class Tool(Strict):
    """A tool; only functions are known. The order of the fields is the one in which models are trained to read them."""

    type: Literal["function"] = "function"
    function: Function


class ChatTemplateFields(Strict):
    """What a chat template is given."""

    tools: Few[Tool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Label | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class ChatRequest(GenerationFields, ChatTemplateFields):
    """`max_tokens` and `max_completion_tokens` absent: the rest of the context."""

    messages: Items[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    documents: Items[dict[str, Any]] | None = None
    unsupported = UNSUPPORTED | {
        **dict.fromkeys(("add_special_tokens", "echo"), (False,)),
        "chat_template": (),
        "chat_template_content_format": ("auto", "string"),
        "include_reasoning": (True,),
    }


class GenerateParams(SamplingFields):
    """SGLang's names in `sampling_params`."""

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    sampling_seed: int | None = None
    no_stop_trim: bool | None = None
    unsupported = UNSUPPORTED | dict.fromkeys(("response_format", "return_logprob", "stream"), (False,))


class GenerateRequest(Strict):
    """`text` or `input_ids`, each one prompt or a list. `sampling_params`: the same for all prompts. A stream's events each
    have the whole text so far, as SGLang's."""

    text: Prompts = None
    input_ids: Prompts = None
    sampling_params: GenerateParams | None = None
    return_logprob: bool | None = None
    top_logprobs_num: int | None = None
    stream: bool | None = None
    lora_path: str | None = None
    model: str | None = None
    rid: Label | None = None
    unsupported = {
        **dict.fromkeys(("return_text_in_logprobs", "return_hidden_states"), (False,)),
        **dict.fromkeys(("token_ids_logprob", "input_embeds", "image_data", "audio_data", "video_data"), ()),
        "logprob_start_len": (-1,),
    }


class TokenizeRequest(ChatTemplateFields):
    """`prompt`, or a conversation (`messages` and what goes with it, as in /v1/chat/completions)."""

    prompt: str | None = None
    messages: Items[Message] | None = None
    model: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    unsupported = {"chat_template": ()}


class DetokenizeRequest(Strict):
    """`tokens`: token ids. `skip_special_tokens`: SGLang's; false if absent."""

    tokens: Annotated[list[TokenId], Field(fail_fast=True)]
    model: str | None = None
    skip_special_tokens: bool | None = None


class LoadRequest(Strict):
    """`lora_path`: a folder in PEFT's format, inside `--adapter-root`."""

    lora_name: Annotated[str, Field(min_length=1, max_length=200)]
    lora_path: str
    unsupported = {"load_inplace": (False,)}


class UnloadRequest(Strict):
    """`lora_name`: the name under which it was loaded."""

    lora_name: str
