"""ResponseFormatter: how an endpoint writes a generation, whole or as a stream of events; and those of
/v1/completions and /generate."""

import json
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from itertools import islice
from typing import Any

from nanoinfer.outputs import CompletionOutput, FinishReason, RequestOutput, StreamPiece
from nanoinfer.server.errors import ApiError
from nanoinfer.server.generation import Generation, GenerationRequest
from nanoinfer.server.logprobs import LEAST, Entry, Offsets, completion_logprobs, prompt_entries, prompt_logprobs
from nanoinfer.server.protocol import CompletionRequest, GenerateRequest, GenerationFields
from nanoinfer.server.service import Service
from nanoinfer.version import __version__

DONE = "data: [DONE]\n\n"
# Line ends for `str.splitlines`, with which some clients read streams, though not for server-sent events.
_LINE_ENDS = str.maketrans({"\x7f": "\\u007f", "\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))  # once: it writes each token


class ResponseFormatter(ABC):
    """How an endpoint writes a generation. `top_logprobs`: of how many likeliest tokens log-probabilities are wanted; None:
    not even of the token itself. `id_prefix`: what the answer's id has before that of the HTTP request. `index` in `piece`
    is the completion's (see `Generation.read`); an answer has `copies` choices for each."""

    id_prefix = ""
    hides_output = False

    def __init__(self, service: Service, request: GenerationRequest, request_id: str):
        self.request, self.answer_id, self.names = request, f"{self.id_prefix}{request_id}", service.token_names
        self.top_logprobs = request.params.logprobs
        self.created = int(time.time())

    def piece(self, index: int, piece: StreamPiece) -> str:
        """The events for what is new in one completion. Empty for one that was ended early, without anything new."""
        if not (piece.text or piece.token_ids or reason_in(piece)):
            return ""
        first = index * self.request.copies
        return "".join([self.choice_events(i, piece) for i in range(first, first + self.request.copies)])

    @abstractmethod
    def choice_events(self, i: int, piece: StreamPiece) -> str:
        """The events of choice `i`."""

    @abstractmethod
    def whole(self, generation: Generation, outputs: list[RequestOutput]) -> Any:
        """The answer to a request that does not stream."""

    @abstractmethod
    def last_events(self, generation: Generation, error: ApiError | None) -> str:
        """What comes after the choices' events: usage, or what went wrong; then the end."""

    def completions(self, outputs: list[RequestOutput]) -> list[tuple[RequestOutput, CompletionOutput]]:
        """The completion that each choice has, in order, and the output that has it."""
        return [(output, each) for output in outputs for each in output.outputs for _ in range(self.request.copies)]

    def usage(self, generation: Generation) -> dict[str, Any]:
        """OpenAI's `usage`, once all choices are there. Each of `n` choices counts, also those that are copies; a prompt
        counts once."""
        prompt = self.request.prompt_tokens
        output = 0 if self.hides_output else generation.output_tokens * self.request.copies
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": generation.cached_tokens},
        }


class ChoicesFormatter(ResponseFormatter):
    """What OpenAI's completions and chat have in common: `choices`, which a subclass writes."""

    stream_object = whole_object = ""

    def __init__(self, service: Service, body: GenerationFields, request: GenerationRequest, request_id: str):
        super().__init__(service, request, request_id)
        self._include_usage = bool(body.stream_options and body.stream_options.include_usage)
        self.wants_ids, self._prompt_top = bool(body.return_token_ids), body.prompt_logprobs

    @abstractmethod
    def choice(self, i: int, output: RequestOutput, completion: CompletionOutput) -> dict[str, Any]:
        """Choice `i`, whole."""

    def whole(self, generation: Generation, outputs: list[RequestOutput]) -> dict[str, Any]:
        choices = []
        for i, (output, completion) in enumerate(self.completions(outputs)):
            choices.append(self.choice(i, output, completion))
            if self._prompt_top is not None:
                choices[i]["prompt_logprobs"] = prompt_logprobs(self.names, output, self._prompt_top)
        return {**self._fields(self.whole_object), "choices": choices, "usage": self.usage(generation)}

    def last_events(self, generation: Generation, error: ApiError | None) -> str:
        if error is not None or not self._include_usage:
            return done(error)
        return self._event(choices=[], usage=self.usage(generation)) + done()

    def event(self, choice: dict[str, Any]) -> str:
        """One event with this choice."""
        return self._event(choices=[choice], **({"usage": None} if self._include_usage else {}))

    def _event(self, **more: Any) -> str:
        return f"data: {dumps({**self._fields(self.stream_object), **more})}\n\n"

    def _fields(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created,
            "model": self.request.model,
            "system_fingerprint": f"nanoinfer-{__version__}",
        }


def reason_in(piece: StreamPiece | CompletionOutput) -> str | None:
    """A piece's finish reason, unless it was ended early: then an error says why."""
    return None if piece.finish_reason in (FinishReason.ABORT, FinishReason.TIMEOUT) else piece.finish_reason


def dumps(value: Any) -> str:
    """`value` as JSON. ValueError for NaN and infinities, which JSON does not have."""
    text = _ENCODER.encode(value)
    return text if text.isascii() else text.translate(_LINE_ENDS)


def done(error: ApiError | None = None) -> str:
    """The end of a stream, after what went wrong."""
    return DONE if error is None else f"data: {dumps(error.content)}\n\n{DONE}"


class CompletionFormatter(ChoicesFormatter):
    """Choices with `text`. With `echo`, a choice begins with its prompt; with `max_tokens=0` it is only the prompt."""

    id_prefix, stream_object, whole_object = "cmpl-", "text_completion", "text_completion"

    def __init__(self, service: Service, body: CompletionRequest, request: GenerationRequest, request_id: str):
        super().__init__(service, body, request, request_id)
        self.hides_output = body.max_tokens == 0
        self._echoes_logprobs = bool(body.echo) and body.logprobs is not None
        prompts = [body.prompt] if request.requests[0].name == "prompt" else body.prompt
        texts = [each if isinstance(each, str) else service.tokenizer.decode(each) for each in prompts if body.echo]
        self._echo = texts or [""] * len(prompts)
        self._offsets: dict[int, Offsets] = {}
        self._prompt_entries: dict[int, list[Entry | None]] = {}  # by prompt: what its first completion brings, for all
        self._early = defaultdict[int, list[tuple[int, StreamPiece]]](list)  # by prompt: pieces that came before that

    def piece(self, index: int, piece: StreamPiece) -> str:
        if not self._echoes_logprobs:
            return super().piece(index, piece)
        prompt = index // self.request.params.n
        self._note_prompt(prompt, piece)
        self._early[prompt].append((index, piece))
        if prompt not in self._prompt_entries:
            return ""
        return "".join([super(CompletionFormatter, self).piece(*each) for each in self._early.pop(prompt)])

    def choice_events(self, i: int, piece: StreamPiece) -> str:
        return self.event(self._choice(i, piece))

    def choice(self, i: int, output: RequestOutput, completion: CompletionOutput) -> dict[str, Any]:
        if self._echoes_logprobs:
            self._note_prompt(i // self.request.choices_per_prompt, output)
        return self._choice(i, completion)

    def _note_prompt(self, prompt: int, found: StreamPiece | RequestOutput) -> None:
        if found.prompt_logprobs is not None:
            tokens = self.request.prompts[prompt]
            self._prompt_entries[prompt] = prompt_entries(tokens, found, self.top_logprobs or 0)

    def _choice(self, i: int, part: StreamPiece | CompletionOutput) -> dict[str, Any]:
        """Choice `i`, as far as it is told now."""
        prompt, begins = i // self.request.choices_per_prompt, i not in self._offsets
        prompt_ids: list[int] = self.request.prompts[prompt]
        text, ids, entries = part.text, part.token_ids, list[Entry | None](part.logprobs or ())
        reason, stop_reason = reason_in(part), part.stop_reason
        if self.hides_output:
            text, ids, entries, reason, stop_reason = "", [], [], "length", None
        tokens = ids
        if begins:
            echoed = prompt_ids if self._echoes_logprobs else []
            shows_special = not self.request.params.skip_special_tokens
            self._offsets[i] = Offsets(self.names, shows_special, echoed, self._echo[prompt])
            text, tokens = self._echo[prompt] + text, [*echoed, *ids]
            entries = [*self._prompt_entries.get(prompt, ()), *entries]
        choice = {"index": i, "text": text, "logprobs": None, "finish_reason": reason, "stop_reason": stop_reason}
        if self.top_logprobs is not None:
            choice["logprobs"] = completion_logprobs(self.names, self._offsets[i], tokens, entries, self.top_logprobs)
        if self.wants_ids:
            choice |= {"token_ids": ids, "prompt_token_ids": list(prompt_ids) if begins else None}
        return choice


class GenerateFormatter(ResponseFormatter):
    """One object per choice: alone, or in a list where several were asked for. Events have `index`, and all text so far."""

    def __init__(self, service: Service, body: GenerateRequest, request: GenerationRequest, request_id: str):
        super().__init__(service, request, body.rid or request_id)
        self._is_list = request.requests[0].name.endswith("]") or request.choices_per_prompt > 1
        self._started = time.perf_counter()
        self._so_far: dict[int, StreamPiece] = {}

    def choice_events(self, i: int, piece: StreamPiece) -> str:
        before = self._so_far.get(i)
        whole = self._so_far[i] = piece if before is None else before + piece
        shown = self._shown(whole, whole.prompt_tokens)
        return f"data: {dumps({'index': i, **shown} if self._is_list else shown)}\n\n"

    def last_events(self, generation: Generation, error: ApiError | None) -> str:
        return done(error)

    def whole(self, generation: Generation, outputs: list[RequestOutput]) -> Any:
        choices = [self._shown(each, output.prompt_tokens) for output, each in self.completions(outputs)]
        return choices if self._is_list else choices[0]

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
            if self.top_logprobs:
                likeliest = [dict(sorted(entry.items(), key=lambda item: -item[1])) for entry in part.logprobs]
                meta["output_top_logprobs"] = [_triples(entry, self.top_logprobs) for entry in likeliest]
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
