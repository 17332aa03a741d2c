"""SGLang's /generate: what is asked, and answers that have `text`, `output_ids` and `meta_info`."""

import time
from itertools import islice
from typing import Any

from nanoinfer.outputs import CompletionOutput, RequestOutput, StreamPiece
from nanoinfer.server.errors import ApiError, bad_request
from nanoinfer.server.formatter import DONE, ResponseFormatter, dumps, reason_in
from nanoinfer.server.generation import Generation, GenerationRequest
from nanoinfer.server.logprobs import LEAST, Entry
from nanoinfer.server.protocol import GenerateParams, GenerateRequest
from nanoinfer.server.request_parsing import ParsedFields, make_request, prompts_of
from nanoinfer.server.service import Service

DEFAULT_TOKENS = 128  # SGLang's


async def generate_request(service: Service, body: GenerateRequest) -> GenerationRequest:
    """What a request to /generate asks for. ApiError naming the field that is wrong."""
    if (body.text is None) == (body.input_ids is None):
        raise bad_request("text: must be given, or else input_ids", "text")
    if isinstance(body.input_ids, str):
        raise bad_request("input_ids: must be token ids", "input_ids")
    if body.lora_path is not None and body.model is not None:
        raise bad_request("lora_path: model is given as well", "lora_path")
    field, given = ("text", body.text) if body.input_ids is None else ("input_ids", body.input_ids)
    params = body.sampling_params or GenerateParams()
    fields = ParsedFields(params)
    fields.names |= {"max_new_tokens": "max_new_tokens", "min_new_tokens": "min_new_tokens"}
    if body.return_logprob:
        fields.values["logprobs"] = body.top_logprobs_num or 0
        fields.names["logprobs"] = "top_logprobs_num"
    prompts, names = await prompts_of(service, given, field)
    model = body.lora_path or body.model or service.base_name
    return make_request(service, prompts, names, model, fields, params.max_new_tokens, DEFAULT_TOKENS, params.n)


class GenerateFormatter(ResponseFormatter):
    """One object per choice: alone, or in a list where several were asked for. Events have `index`, and all text so far."""

    def __init__(self, service: Service, body: GenerateRequest, request: GenerationRequest, answer_id: str):
        super().__init__(answer_id, request, service.token_names, include_usage=False)
        self._top = body.top_logprobs_num or 0
        self._is_list = request.requests[0].name.endswith("]") or request.choices_per_prompt > 1
        self._started = time.perf_counter()
        self._so_far: dict[int, StreamPiece] = {}

    def choice_events(self, i: int, piece: StreamPiece) -> str:
        if not (piece.text or piece.token_ids or reason_in(piece)):
            return ""
        before = self._so_far.get(i)
        whole = self._so_far[i] = piece if before is None else before + piece
        shown = self._shown(whole, whole.prompt_tokens)
        return f"data: {dumps({'index': i, **shown} if self._is_list else shown)}\n\n"

    def last_events(self, generation: Generation, error: ApiError | None) -> str:
        return DONE if error is None else f"data: {dumps(error.content)}\n\n{DONE}"

    def whole(self, generation: Generation, outputs: list[RequestOutput]) -> Any:
        choices = self.choices(outputs)
        return choices if self._is_list else choices[0]

    def choice(self, i: int, output: RequestOutput, k: int) -> dict[str, Any]:
        return self._shown(output.outputs[k], output.prompt_tokens)

    def _shown(self, part: StreamPiece | CompletionOutput, prompt_tokens: int) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "id": self.answer_id,
            "finish_reason": _reason(reason_in(part), part),
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(part.token_ids),
            "cached_tokens": part.cached_tokens,
            "e2e_latency": time.perf_counter() - self._started,
        }
        if part.logprobs is not None:
            meta["output_token_logprobs"] = [_triples(entry, 1)[0] for entry in part.logprobs]
            if self._top:
                likeliest = [dict(sorted(entry.items(), key=lambda item: -item[1])) for entry in part.logprobs]
                meta["output_top_logprobs"] = [_triples(entry, self._top) for entry in likeliest]
        return {"text": part.text, "output_ids": part.token_ids, "meta_info": meta}


def _reason(reason: str | None, part: StreamPiece | CompletionOutput) -> dict[str, Any] | None:
    """SGLang's form: {"type": "length", "length": 16} or {"type": "stop", "matched": what ended it}."""
    if reason is None:
        return None
    if reason == "length":
        return {"type": "length", "length": len(part.token_ids)}
    last = part.token_ids[-1] if part.token_ids else None
    return {"type": str(reason), "matched": last if part.stop_reason is None else part.stop_reason}


def _triples(entry: Entry, count: int) -> list[tuple[float, int, None]]:
    return [(max(logprob, LEAST), token, None) for token, logprob in islice(entry.items(), count)]
