"""The fields that requests to /v1/completions and /v1/chat/completions share, and how strictly a body is read."""

import json
import logging
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from nanoinfer.requests.keywords import CLOSE, LONGEST, Elsewhere

logger = logging.getLogger("nanoinfer.server")
T = TypeVar("T")
Label = Annotated[str, Field(max_length=256)]  # what is only kept or repeated: the cache keeps salts, for example
MOST_ITEMS = 10_000  # in a list, however large the body may be; server settings have lower limits for some
# A list is read up to the first item that is wrong: pydantic would make an object for each one, which takes seconds.
Items = Annotated[list[T], Field(fail_fast=True, max_length=MOST_ITEMS)]


def shown(name: str) -> str:
    """A name from a body as messages can quote it: short, and encodable as UTF-8."""
    return (name if len(name) <= 60 else f"{name[:60]}…").encode("utf-8", "backslashreplace").decode()


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The most similar of the `known` names, as the end of a sentence; empty if none is similar."""
    close = get_close_matches(name, list(known), n=1, cutoff=CLOSE) if len(name) <= LONGEST else []
    return f"; did you mean {close[0]!r}?" if close else ""


def _check_text(name: str, value: Any) -> None:
    """JSON can write half a surrogate pair (\\ud800), which no answer and no tokenizer could encode."""
    try:
        (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode()
    except UnicodeEncodeError:
        raise PydanticCustomError("not_utf8", "must be text that can be encoded as UTF-8", {"field": name}) from None
    except RecursionError:
        raise PydanticCustomError("too_deep", "has too many levels of lists and objects", {"field": name}) from None


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
MOST_FIELDS = 100  # of one object
MOST_NOTED = 1000  # different names of fields: nobody may fill the log
_noted: set[str] = set()


def note_ignored(name: str) -> None:
    """Log that a field is ignored, once for each name."""
    if name not in _noted and len(_noted) < MOST_NOTED:
        _noted.add(name)
        logger.warning("ignored: the field %r, which means nothing here", shown(name))


class Strict(BaseModel):
    """A body, or part of one. Nothing is converted ("1" is no number; 1 is one, too, where 1.0 is expected).

    A field of `unsupported` is refused with a reason, unless its value asks for nothing. So is what looks like one of ours
    misspelt, unless it is null. Any other unknown field is ignored, and logged."""

    model_config = ConfigDict(strict=True, protected_namespaces=())
    unsupported: ClassVar[Mapping[str, Elsewhere]] = {}

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_cannot_be_done(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if len(data) > MOST_FIELDS:
            raise PydanticCustomError("too_many", "must not have more than {most} fields", {"most": MOST_FIELDS})
        known = {field.alias or name for name, field in cls.model_fields.items()}
        for name, value in data.items():
            if name in known:
                _check_text(name, value)
            elif name in cls.unsupported:
                if not cls.unsupported[name].accepts(value):
                    why = cls.unsupported[name].sentence
                    raise PydanticCustomError("unsupported", "is not supported: {why}", {"why": why, "field": name})
            elif value is not None and (hint := did_you_mean(name, known)):
                raise PydanticCustomError("unknown", "no such field{hint}", {"hint": hint, "field": shown(name)})
            else:
                note_ignored(name)
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
    unsupported = {
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
    unsupported = {"schema": Elsewhere("use the type json_schema", (None,))}


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
