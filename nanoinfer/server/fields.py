"""The fields that requests to /v1/completions and /v1/chat/completions share, and how strictly a body is read."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from nanoinfer.requests.keywords import Elsewhere
from nanoinfer.server.hints import did_you_mean

T = TypeVar("T")
Label = Annotated[str, Field(max_length=256)]  # what is only kept or repeated: the cache keeps salts, for example
MOST_ITEMS = 10_000  # in a list, however large the body may be; server settings have lower limits for some
# A list is read up to the first item that is wrong: pydantic would make an object for each one, which takes seconds.
Items = Annotated[list[T], Field(fail_fast=True, max_length=MOST_ITEMS)]


def _first_bias(biases: Any) -> Any:
    """As for Items: not too many, and only the first bias that is wrong is told."""
    if isinstance(biases, dict) and len(biases) > MOST_ITEMS:
        raise PydanticCustomError("too_many", "must not have more than {most} token ids", {"most": MOST_ITEMS})
    for token, bias in biases.items() if isinstance(biases, dict) else ():
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            raise PydanticCustomError(
                "bias", "each bias must be a number, that of {token} is none", {"token": shown(token)}
            )
    return biases


def shown(name: str) -> str:
    """A name from a body as messages can quote it: short, and encodable as UTF-8."""
    return (name if len(name) <= 60 else f"{name[:60]}…").encode("utf-8", "backslashreplace").decode()


def _check_text(name: str, value: Any) -> None:
    """JSON can write half a surrogate pair (\\ud800), which no answer and no tokenizer could encode."""
    if isinstance(value, str | list | dict):
        try:
            if _is_of_numbers(value):
                return
            (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode()
        except UnicodeEncodeError:
            raise PydanticCustomError(
                "not_utf8", "must be text that can be encoded as UTF-8", {"field": name}
            ) from None
        except RecursionError:
            raise PydanticCustomError(
                "too_deep", "has too many lists and objects inside each other", {"field": name}
            ) from None


def _is_of_numbers(value: Any) -> bool:
    """Whether it is a list of nothing but whole numbers, or of such lists: to write millions of token ids takes long."""
    if not isinstance(value, list):
        return False
    kinds = set(map(type, value))
    return kinds <= {int} or (kinds == {list} and all(map(_is_of_numbers, value)))


Biases = Annotated[dict[str, float], BeforeValidator(_first_bias)]
Stop = Annotated[
    Any,
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]}),
]
JsonSchema = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "string"}, {"type": "null"}]})]

# Fields of OpenAI, vLLM and SGLang that do not exist here: why, and the values that ask for what happens anyway.
_BEAMS = Elsewhere("beam search is not implemented", (None, False))
_CACHED = Elsewhere("responses are not stored", (None, False))
UNSUPPORTED = {
    "best_of": Elsewhere("use n and logprobs, and choose yourself", (None, 1)),
    "suffix": Elsewhere("text is only continued", (None, "")),
    "store": _CACHED,
    "metadata": Elsewhere(_CACHED.sentence, (None, {})),
    "functions": Elsewhere("use tools", (None, [])),
    "function_call": Elsewhere("use tools and tool_choice", (None, "none")),
    "audio": Elsewhere("only text is generated", (None,)),
    "modalities": Elsewhere("only text is generated", (None, ["text"])),
    "prediction": Elsewhere("start the server with a drafter", (None,)),
    "service_tier": Elsewhere("all requests are served alike", (None, "auto", "default")),
    "reasoning_effort": Elsewhere("use chat_template_kwargs, if the template has such a variable", (None,)),
    "verbosity": Elsewhere("ask for it in the prompt", (None,)),
    "web_search_options": Elsewhere("the model has no tools of its own", (None,)),
    "use_beam_search": _BEAMS,
    "length_penalty": Elsewhere(_BEAMS.sentence, (None, 1, 1.0)),
    "early_stopping": _BEAMS,
    "bad_words": Elsewhere("use logit_bias", (None, [])),
    "allowed_token_ids": Elsewhere("use logit_bias", (None,)),
    "truncate_prompt_tokens": Elsewhere("prompts are never truncated", (None,)),
    "spaces_between_special_tokens": Elsewhere("no spaces are added to the text", (None, False)),
    "add_special_tokens": Elsewhere("give token ids to choose each token yourself", (None,)),
    "guided_decoding_backend": Elsewhere("there is one backend", (None,)),
    "guided_whitespace_pattern": Elsewhere("JSON is written without whitespace", (None,)),
    "logits_processors": Elsewhere("use logit_bias", (None, [])),
    "return_tokens_as_token_ids": Elsewhere("use return_token_ids", (None, False)),
    "ebnf": Elsewhere("use guided_grammar, which takes a Lark grammar", (None,)),
    "stop_regex": Elsewhere("use stop, which takes texts", (None, [])),
    "priority": Elsewhere("requests have no priorities", (None, 0)),
    "lora_path": Elsewhere("use the adapter's name as model", (None,)),
    "kv_transfer_params": Elsewhere("K/V stays in this server", (None,)),
    "mm_processor_kwargs": Elsewhere("only text is understood", (None,)),
}


class Strict(BaseModel):
    """A body, or part of one: unknown fields are refused, and nothing is converted ("1" is no number; 1 is one, too, where
    1.0 is expected). A field of `unsupported` is refused with a reason, unless its value asks for what happens anyway."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())
    unsupported: ClassVar[Mapping[str, Elsewhere]] = {}

    @model_validator(mode="before")
    @classmethod
    def _refuse_other_fields(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = {field.alias or name for name, field in cls.model_fields.items()}
        for name, value in data.items():
            if name in known:
                _check_text(name, value)
                continue
            if name not in cls.unsupported:
                hint = did_you_mean(name, known)
                raise PydanticCustomError("unknown", "no such field{hint}", {"hint": hint, "field": shown(name)})
            if not cls.unsupported[name].accepts(value):
                why = cls.unsupported[name].sentence
                raise PydanticCustomError("unsupported", "is not supported: {why}", {"why": why, "field": name})
        return {name: value for name, value in data.items() if name in known}


class StreamOptions(Strict):
    """`include_usage`: one more chunk before the end has the usage."""

    include_usage: bool | None = None
    unsupported = {
        "continuous_usage_stats": Elsewhere("the last chunk has the usage", (None, False)),
        "include_obfuscation": Elsewhere("nothing is added to chunks", (None, False)),
    }


class StructuredOutputs(Strict):
    """vLLM's way to say what the output must match."""

    json_: JsonSchema = Field(default=None, alias="json")
    regex: str | None = None
    choice: Items[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    unsupported = {
        "disable_any_whitespace": Elsewhere("JSON is written without whitespace", (None, True)),
        "disable_fallback": Elsewhere("there is one backend", (None, True, False)),
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
    logit_bias: Biases | None = None
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
    structured_outputs: StructuredOutputs | None = None
    cache_salt: Label | None = None
    return_token_ids: bool | None = None
    unsupported = UNSUPPORTED

    @property
    def include_usage(self) -> bool:
        """True when the stream ends with its usage."""
        return bool(self.stream_options and self.stream_options.include_usage)
