"""The body of a request to /v1/completions."""

from typing import Annotated, Any

from pydantic import WithJsonSchema

from nanoinfer.server.errors import ApiError, bad_request
from nanoinfer.server.fields import GenerationFields

_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_TEXT = {"type": "string", "minLength": 1}
Prompts = Annotated[
    Any, WithJsonSchema({"anyOf": [_TEXT, _IDS, {"type": "array", "items": {"anyOf": [_TEXT, _IDS]}, "minItems": 1}]})
]


class CompletionRequest(GenerationFields):
    """`prompt`: text, token ids, or a list of these. `max_tokens` absent: 16. `echo`: an answer begins with its prompt."""

    prompt: Prompts
    echo: bool | None = None
    logprobs: int | None = None


def several_prompts(given: Any, max_prompts: int, max_tokens: int, field: str = "prompt") -> list[str | list[int]]:
    """The prompts of a request, one or more; `given` itself if it is a list of them. ApiError for more than `max_prompts`,
    for one that leaves no room for an answer within `max_tokens`, and naming the one that is neither text nor token ids.
    Numbers are checked first, so that no long list is walked."""
    if isinstance(given, str) or _are_ids(given, field, max_tokens):
        return [given]
    if not isinstance(given, list) or not given:
        what = "is an empty list" if given == [] else f"is {_kind(given)}"
        raise bad_request(f"{field}: {what}: must be text, token ids, or a list of these", field)
    if len(given) > max_prompts:
        raise bad_request(f"{field}: {len(given)} prompts: must not exceed {max_prompts}", field)
    for i, each in enumerate(given):
        if not isinstance(each, str) and not _are_ids(each, f"{field}[{i}]", max_tokens):
            what = "is an empty list" if each == [] else f"is {_kind(each)}"
            raise bad_request(f"{field}[{i}]: {what}: must be text or token ids", field)
    return given


def no_room(name: str, tokens: int, max_tokens: int) -> ApiError:
    """The answer to a prompt that is too long."""
    return bad_request(
        f"{name}: has {tokens} tokens: must have fewer than {max_tokens} (the context, or the slots for K/V)",
        name.partition("[")[0],
        "context_length_exceeded",
    )


def _are_ids(value: Any, name: str, max_tokens: int) -> bool:
    if not isinstance(value, list) or not value or not _is_id(value[0]):
        return False
    if len(value) >= max_tokens:
        raise no_room(name, len(value), max_tokens)
    return all(map(_is_id, value))


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list of other things", type(None): "null", bool: "true or false"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else "text")
