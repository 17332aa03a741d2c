"""SGLang's /generate: a prompt and sampling_params; answers have `text`, `output_ids` and `meta_info`."""

import time
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field, WithJsonSchema
from starlette.responses import Response

from nanoinfer.requests.keywords import ALIASES
from nanoinfer.requests.outputs import RequestOutput
from nanoinfer.requests.stream_pieces import StreamPiece
from nanoinfer.server.answer import GenerationResponse
from nanoinfer.server.bodies import UNSUPPORTED, Prompts
from nanoinfer.server.errors import ApiError, bad_request
from nanoinfer.server.fields import Elsewhere, Label, Strict, did_you_mean, note_ignored
from nanoinfer.server.generation import Generation, Wish
from nanoinfer.server.logprobs import LEAST, Entry
from nanoinfer.server.notes import notes_of
from nanoinfer.server.service import Service
from nanoinfer.server.shape import DONE, Shape, dumps, reason_in
from nanoinfer.server.to_params import OURS, Given, make_params, token_biases
from nanoinfer.server.wishes import encode_prompts, several_prompts

DEFAULT_TOKENS = 128  # SGLang's
KNOWN = {*OURS, *(theirs for theirs, ours in ALIASES.items() if ours in OURS)}
NOT_IN_PARAMS = UNSUPPORTED | {
    "response_format": Elsewhere("use json_schema, regex, grammar or choice", (None,)),
    **dict.fromkeys(
        ("return_logprob", "top_logprobs_num", "stream"), Elsewhere("give it beside sampling_params", (None, False, 0))
    ),
}
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
    given = several_prompts(prompt, service.settings.max_prompts, field)
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
        elsewhere = NOT_IN_PARAMS.get(name)
        if elsewhere is not None and not elsewhere.accepts(fields[name]):
            raise bad_request(f"{name}: is not supported in sampling_params: {elsewhere.sentence}", name)
        if elsewhere is not None or not did_you_mean(name, KNOWN):
            note_ignored(name)
            del fields[name]
    return fields


class GenerateShape(Shape):
    """One object per choice: alone, or in a list where several were asked for. Events have `index`, and all text so far."""

    def __init__(self, service: Service, wish: Wish, answer_id: str, is_list: bool, top_logprobs: int):
        super().__init__(answer_id, wish, service.token_names, include_usage=False)
        self._top, self._is_list = top_logprobs, is_list or wish.choices_per_prompt > 1
        self._started = time.perf_counter()
        self._so_far: dict[int, StreamPiece] = {}

    def choice_events(self, i: int, piece: StreamPiece) -> str:
        if not (piece.text or piece.token_ids or reason_in(piece)):
            return ""
        before = self._so_far.get(i)
        whole = self._so_far[i] = piece if before is None else before + piece
        shown = self._shown(
            whole.text, whole.token_ids, reason_in(whole), whole.stop_reason, whole.prompt_tokens, whole.cached_tokens,
            whole.logprobs,
        )  # fmt: skip
        return f"data: {dumps({'index': i, **shown} if self._is_list else shown)}\n\n"

    def last_events(self, generation: Generation, error: ApiError | None) -> str:
        return DONE if error is None else f"data: {dumps(error.content)}\n\n{DONE}"

    def whole(self, generation: Generation, outputs: list[RequestOutput]) -> Any:
        choices = [
            self.choice(0, output, k)
            for output in outputs
            for k in range(len(output.outputs))
            for _ in range(self.wish.copies)
        ]
        return choices if self._is_list else choices[0]

    def choice(self, i: int, output: RequestOutput, k: int) -> dict[str, Any]:
        one = output.outputs[k]
        return self._shown(
            one.text,
            one.token_ids,
            one.finish_reason,
            one.stop_reason,
            output.prompt_tokens,
            one.cached_tokens,
            one.logprobs,
        )

    def _shown(
        self,
        text: str,
        tokens: list[int],
        reason: str | None,
        stop_reason: int | str | None,
        prompt_tokens: int,
        cached_tokens: int,
        logprobs: list[Entry] | None,
    ) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "id": self.answer_id,
            "finish_reason": _reason(reason, stop_reason, tokens),
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(tokens),
            "cached_tokens": cached_tokens,
            "e2e_latency": time.perf_counter() - self._started,
        }
        if logprobs is not None:
            meta["output_token_logprobs"] = [_triple(*next(iter(entry.items()))) for entry in logprobs]
            if self._top:
                meta["output_top_logprobs"] = [_likeliest(entry, self._top) for entry in logprobs]
        return {"text": text, "output_ids": tokens, "meta_info": meta}


def _reason(reason: str | None, stop_reason: int | str | None, tokens: list[int]) -> dict[str, Any] | None:
    """SGLang's form: {"type": "length", "length": 16} or {"type": "stop", "matched": what ended it}."""
    if reason is None:
        return None
    if reason == "length":
        return {"type": "length", "length": len(tokens)}
    return {"type": str(reason), "matched": tokens[-1] if stop_reason is None and tokens else stop_reason}


def _triple(token: int, logprob: float) -> tuple[float, int, None]:
    return max(logprob, LEAST), token, None


def _likeliest(entry: Entry, count: int) -> list[tuple[float, int, None]]:
    return [_triple(*each) for each in sorted(entry.items(), key=lambda item: -item[1])[:count]]
