"""From the fields of a request to SamplingParams, and from what the engine says about these back to the client's fields."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from nanoinfer.requests.sampling_params import SamplingParams
from nanoinfer.server.bodies import GenerationFields, ResponseFormat
from nanoinfer.server.errors import ApiError, bad_request, code_of
from nanoinfer.server.settings import ServerSettings

# OpenAI's, vLLM's and SGLang's fields → ours. The others need more than another name; see below.
_SAME = (
    *("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "seed"),
    *("stop", "stop_token_ids", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens"),
)
NAMES = {name: name for name in _SAME} | {"min_tokens": "min_new_tokens"}
GRAMMAR_NAMES = {
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json_schema",
    "regex": "regex",
    "ebnf": "grammar",
    "choice": "choice",
    "grammar": "grammar",
}
NO_SEED = -1  # vLLM's clients ask for none with it
MAX_MESSAGE = 1000  # characters: messages quote values
ANY_OBJECT = {"type": "object"}
OURS = {each.name for each in fields(SamplingParams)}


@dataclass
class Given:
    """Arguments of SamplingParams that a request gives. `names`: what the client calls them."""

    values: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(
        default_factory=lambda: {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}
    )


def given_by(request: GenerationFields, settings: ServerSettings) -> Given:
    """What a request gives, except its number of tokens, `n` and log-probabilities. ApiError for two grammars."""
    given = Given(
        {
            ours: value
            for theirs, ours in NAMES.items()
            if (value := getattr(request, theirs)) is not None and (theirs, value) != ("seed", NO_SEED)
        }
    )
    if request.logit_bias is not None:
        given.values["logit_bias"] = token_biases(request.logit_bias, settings)
    grammars = _grammars_of(request)
    if len({json.dumps(same) for _, *same in grammars}) > 1:  # clients give one grammar under its old and its new name
        names = [theirs for theirs, _, _ in grammars]
        raise bad_request(f"{' and '.join(names)}: at most one of them can be given", names[-1])
    for theirs, ours, value in grammars[:1]:
        given.values[ours], given.names[ours] = value, theirs
    return given


def _grammars_of(request: GenerationFields) -> list[tuple[str, str, Any]]:
    """The grammars that a request gives: the client's name, ours, and the value."""
    asked = ((theirs, ours, getattr(request, theirs)) for theirs, ours in GRAMMAR_NAMES.items())
    grammars = [each for each in asked if each[2] is not None]
    if (outputs := request.structured_outputs) is not None:
        for name, value in outputs.model_dump(exclude_none=True, by_alias=True).items():
            if name != "json_object":
                grammars.append((f"structured_outputs.{name}", "json_schema" if name == "json" else name, value))
            elif value:
                grammars.append(("structured_outputs.json_object", "json_schema", ANY_OBJECT))
    if request.response_format is not None and (schema := schema_of(request.response_format)) is not None:
        grammars.append(("response_format", "json_schema", schema))
    return grammars


def make_params(given: Given, settings: ServerSettings) -> SamplingParams:
    """SamplingParams of `given`, within the server's limits. ApiError naming the client's field."""
    _check_lengths(given.values, settings)
    try:
        params = SamplingParams(**given.values)
    except ValueError as error:
        raise in_their_words(str(error), given.names) from error
    for name in ("logprobs", "prompt_top_logprobs"):
        if (number := getattr(params, name) or 0) > settings.max_logprobs:
            raise bad_request(f"{name}: {number} tokens: must not exceed {settings.max_logprobs}", name)
    return params


def _check_lengths(values: Mapping[str, Any], settings: ServerSettings) -> None:
    """ApiError for what is too long, before anything in it is looked at. What has a wrong type is not judged here."""
    stop = values.get("stop")
    stops = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []
    _check_number("stop", len(stops), settings.max_stop, "strings")
    longest = max((len(each) for each in stops if isinstance(each, str | list | dict)), default=0)
    _check_number("stop", longest, settings.max_stop_chars, "characters in one string")
    for name in ("stop_token_ids", "logit_bias"):
        if isinstance(value := values.get(name), list | dict):
            _check_number(name, len(value), settings.max_token_list, "token ids")


def _check_number(name: str, number: int, most: int, what: str) -> None:
    if number > most:
        raise bad_request(f"{name}: {number} {what}: must not exceed {most}", name)


def in_their_words(message: str, names: Mapping[str, str]) -> ApiError:
    """What the engine says about a field, with the names that the client uses: "prompt: regex: has 6000 characters" becomes
    "guided_regex: has 6000 characters"."""
    found = re.match(r"(?:(?:prompt|messages|text|input_ids)(?:\[\d+\])?: )?(\w+)(?=[:=\[])", message)
    name = found[1] if found else ""
    theirs = names.get(name, name)
    if found and (name in names or name in OURS):
        message = theirs + message[found.end() :]
    for ours, other in names.items():
        message = message if ours == theirs else re.sub(rf"\b{ours}(?==)", other, message)
    message = message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}…"
    return bad_request(message, theirs or None, code_of(message))


def token_biases(given: dict[str, float], settings: ServerSettings) -> dict[int, float]:
    """The biases by token id, which JSON can only write as text."""
    _check_number("logit_bias", len(given), settings.max_token_list, "token ids")
    for key in given:
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise bad_request(f"logit_bias: {key!r}: must be a token id", "logit_bias")
    return {int(key): bias for key, bias in given.items()}


def schema_of(form: ResponseFormat) -> Any:
    """The JSON schema that a `response_format` asks for; None for text."""
    if form.type == "json_schema":
        if form.json_schema is None or form.json_schema.schema_ is None:
            raise bad_request("response_format.json_schema.schema: must be a JSON schema", "response_format")
        return form.json_schema.schema_
    if form.json_schema is not None:
        raise bad_request("response_format.json_schema: only for the type json_schema", "response_format")
    if form.type not in ("text", "json_object"):
        raise bad_request(
            f"response_format.type={form.type!r}: must be text, json_object or json_schema", "response_format"
        )
    return ANY_OBJECT if form.type == "json_object" else None
