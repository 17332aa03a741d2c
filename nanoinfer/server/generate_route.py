"""SGLang's /generate: a prompt and sampling_params; answers have `text`, `output_ids` and `meta_info`."""

from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field, WithJsonSchema
from starlette.responses import Response

from nanoinfer.requests.keywords import ALIASES, Elsewhere
from nanoinfer.server.answer import GenerationResponse
from nanoinfer.server.completion_request import Prompts, several_prompts
from nanoinfer.server.errors import bad_request
from nanoinfer.server.fields import UNSUPPORTED, Label, Strict, did_you_mean, note_ignored
from nanoinfer.server.generate_response import GenerateShape
from nanoinfer.server.generation import Wish
from nanoinfer.server.notes import notes_of
from nanoinfer.server.service import Service
from nanoinfer.server.to_params import OURS, Given, make_params, token_biases
from nanoinfer.server.wishes import encode_prompts

DEFAULT_TOKENS = 128  # SGLang's
KNOWN = {*OURS, *(theirs for theirs, ours in ALIASES.items() if ours in OURS)}
MOST_PARAMS = 100  # fields of sampling_params; there are fewer
Ids = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]})]


class GenerateRequest(Strict):
    """`text` or `input_ids`, each one prompt or a list. `sampling_params`: the fields of SamplingParams, or SGLang's names
    for them, the same for all prompts. A stream's events each have the whole text so far, as SGLang's."""

    text: Prompts = None
    input_ids: Ids = None
    sampling_params: Annotated[dict[str, Any], Field(max_length=MOST_PARAMS)] | None = None
    return_logprob: bool | None = None
    top_logprobs_num: int | None = None
    stream: bool | None = None
    lora_path: str | None = None
    model: str | None = None
    rid: Label | None = None
    unsupported = {  # noqa: RUF012
        "logprob_start_len": Elsewhere("use echo and logprobs of /v1/completions", (None, -1)),
        "return_text_in_logprobs": Elsewhere("use logprobs of /v1/completions", (None, False)),
        "token_ids_logprob": Elsewhere("use top_logprobs_num", (None,)),
        **dict.fromkeys(("image_data", "audio_data", "video_data"), Elsewhere("only text is understood", (None,))),
        "input_embeds": Elsewhere("give text or input_ids", (None,)),
        "return_hidden_states": Elsewhere("only text is returned", (None, False)),
    }


def generate_route(service: Service) -> APIRouter:
    """The route of one server."""
    router = APIRouter()

    @router.post("/generate", response_class=Response)
    async def generate(body: GenerateRequest, request: Request) -> Response:
        """Continue one or more prompts."""
        wish, is_list = await _wish(service, body)
        notes = notes_of(request.scope)
        notes.note_prompt(service, wish)
        shape = GenerateShape(service, wish, body.rid or notes.request_id, is_list, body.top_logprobs_num or 0)
        return GenerationResponse(service, await service.generate(wish), shape, bool(body.stream))

    return router


async def _wish(service: Service, body: GenerateRequest) -> tuple[Wish, bool]:
    if (body.text is None) == (body.input_ids is None):
        raise bad_request("text: must be given, or else input_ids", "text")
    if body.lora_path is not None and body.model is not None:
        raise bad_request("lora_path: model is given as well", "lora_path")
    model = body.lora_path or body.model or service.base_name
    adapter = service.adapter_named(model)
    field, prompt = ("text", body.text) if body.input_ids is None else ("input_ids", body.input_ids)
    given = several_prompts(prompt, service.settings.max_prompts, service.max_tokens, field)
    if any(isinstance(each, str) != (field == "text") for each in given):
        raise bad_request(f"{field}: must be {'text' if field == 'text' else 'token ids'}, or a list of these", field)
    is_list = given is prompt
    names = [f"{field}[{i}]" for i in range(len(given))] if is_list else [field]
    prompts = await encode_prompts(service, given, names)
    fields = _sampling_fields(body.sampling_params or {})
    if isinstance(fields.get("logit_bias"), dict):
        fields["logit_bias"] = token_biases(fields["logit_bias"], service.settings)
    if fields.get("prompt_logprobs"):
        raise bad_request("prompt_logprobs: use echo and logprobs of /v1/completions", "prompt_logprobs")
    if body.return_logprob:
        fields["logprobs"] = body.top_logprobs_num or 0
    if not any(name in fields for name in ("max_new_tokens", "max_tokens", "max_completion_tokens")):
        room = service.max_tokens - max(map(len, prompts))
        fields["max_new_tokens"] = max(min(DEFAULT_TOKENS, room), 1)
    copies = 1
    if service.is_greedy(fields) and type(n := fields.get("n", 1)) is int and n > 1:
        copies = fields.pop("n")
    params = make_params(Given(fields, {}), service.settings)
    if (number := len(prompts) * params.n * copies) > service.settings.max_completions:
        raise bad_request(f"n: {number} completions: must not exceed {service.settings.max_completions}", "n")
    return Wish(prompts, [params] * len(prompts), model, adapter, copies, None, names), is_list


def _sampling_fields(given: dict[str, Any]) -> dict[str, Any]:
    """The fields that SamplingParams may judge. Null means absent, and what resembles none of theirs is ignored."""
    fields = {name: value for name, value in given.items() if value is not None}
    for name in [name for name in fields if name not in KNOWN]:
        if name in UNSUPPORTED and not UNSUPPORTED[name].accepts(fields[name]):
            raise bad_request(f"{name}: is not supported: {UNSUPPORTED[name].sentence}", name)
        if name in UNSUPPORTED or not did_you_mean(name, KNOWN):
            note_ignored(name)
            del fields[name]
    return fields
