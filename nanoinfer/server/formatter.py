"""ResponseFormatter: how an endpoint writes a generation, whole or as a stream of events; and that of /v1/completions."""

import json
import time
from collections import defaultdict
from typing import Any

from nanoinfer.outputs import CompletionOutput, FinishReason, RequestOutput, StreamPiece
from nanoinfer.server.errors import ApiError
from nanoinfer.server.generation import Generation, GenerationRequest
from nanoinfer.server.logprobs import Entry, Offsets, TokenNames, completion_logprobs, prompt_entries, prompt_logprobs
from nanoinfer.server.protocol import CompletionRequest
from nanoinfer.server.service import Service
from nanoinfer.version import __version__

DONE = "data: [DONE]\n\n"
# Line ends for `str.splitlines`, with which some clients read streams, though not for server-sent events.
_LINE_ENDS = str.maketrans({"\x7f": "\\u007f", "\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))  # once: it writes each token


class ResponseFormatter:
    """What the endpoints have in common. A subclass writes choices. `index` in `piece` is the completion's (see
    `Generation.read`); an answer has `copies` choices for each."""

    stream_object = whole_object = ""
    hide_output = False

    def __init__(self, answer_id: str, request: GenerationRequest, names: TokenNames, include_usage: bool):
        self.answer_id, self.request, self.names, self.include_usage = answer_id, request, names, include_usage
        self.created = int(time.time())

    def piece(self, index: int, piece: StreamPiece) -> str:
        """The events for what is new in one completion. Empty for one that was ended early, without anything new."""
        first = index * self.request.copies
        return "".join(self.choice_events(i, piece) for i in range(first, first + self.request.copies))

    def choice_events(self, i: int, piece: StreamPiece) -> str:
        """The events of choice `i`."""
        raise NotImplementedError

    def whole(self, generation: Generation, outputs: list[RequestOutput]) -> dict[str, Any]:
        """The answer to a request that does not stream."""
        choices = self.choices(outputs)
        return {**self._fields(self.whole_object), "choices": choices, "usage": self.usage(generation)}

    def usage(self, generation: Generation) -> dict[str, Any]:
        """OpenAI's `usage`, once all choices are there."""
        return usage_of(generation, self.hide_output)

    def choices(self, outputs: list[RequestOutput]) -> list[dict[str, Any]]:
        """All choices, in order."""
        each = [
            (output, k) for output in outputs for k in range(len(output.outputs)) for _ in range(self.request.copies)
        ]
        return [self.choice(i, output, k) for i, (output, k) in enumerate(each)]

    def choice(self, i: int, output: RequestOutput, k: int) -> dict[str, Any]:
        """Choice `i`: completion `k` of a prompt's output."""
        raise NotImplementedError

    def last_events(self, generation: Generation, error: ApiError | None) -> str:
        """What comes after the choices' events: usage, or what went wrong; then the end."""
        if error is not None:
            return f"data: {dumps(error.content)}\n\n{DONE}"
        if not self.include_usage:
            return DONE
        usage = self.usage(generation)
        return f"data: {dumps({**self._fields(self.stream_object), 'choices': [], 'usage': usage})}\n\n{DONE}"

    def event(self, choice: dict[str, Any]) -> str:
        """One event with this choice."""
        usage = {"usage": None} if self.include_usage else {}
        return f"data: {dumps({**self._fields(self.stream_object), 'choices': [choice], **usage})}\n\n"

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


def usage_of(generation: Generation, hide_output: bool = False) -> dict[str, Any]:
    """OpenAI's `usage`. Each of `n` choices counts, also those that are copies; a prompt counts once. `hide_output`: the
    answer is only the prompt."""
    request = generation.request
    output = 0 if hide_output else generation.output_tokens * request.copies
    return {
        "prompt_tokens": request.prompt_tokens,
        "completion_tokens": output,
        "total_tokens": request.prompt_tokens + output,
        "prompt_tokens_details": {"cached_tokens": generation.cached_tokens},
    }


class CompletionFormatter(ResponseFormatter):
    """Choices with `text`. With `echo`, a choice begins with its prompt; with `max_tokens=0` it is only the prompt."""

    stream_object = whole_object = "text_completion"

    def __init__(self, service: Service, body: CompletionRequest, request: GenerationRequest, answer_id: str):
        super().__init__(answer_id, request, service.token_names, body.include_usage)
        self._wants_logprobs, self._wants_ids = body.logprobs is not None, bool(body.return_token_ids)
        self._top, self._prompt_top = body.logprobs or 0, body.prompt_logprobs
        self.hide_output = body.max_tokens == 0
        prompts = [body.prompt] if request.requests[0].name == "prompt" else body.prompt
        self._echo = (
            [each if isinstance(each, str) else service.tokenizer.decode(each) for each in prompts]
            if body.echo
            else None
        )
        self._offsets: dict[int, Offsets] = {}
        self._prompt_entries: dict[int, list[Entry | None]] = {}  # by prompt: what its first completion brings, for all
        self._early = defaultdict[int, list[tuple[int, StreamPiece]]](list)  # by prompt: pieces that came before that

    def piece(self, index: int, piece: StreamPiece) -> str:
        if self._echo is None or not self._wants_logprobs:
            return super().piece(index, piece)
        prompt = index // self.request.params.n
        if piece.prompt_logprobs is not None:
            self._prompt_entries[prompt] = prompt_entries(self.request.prompts[prompt], piece, self._top)
        self._early[prompt].append((index, piece))
        if prompt not in self._prompt_entries:
            return ""
        return "".join([super(CompletionFormatter, self).piece(*each) for each in self._early.pop(prompt)])

    def choice_events(self, i: int, piece: StreamPiece) -> str:
        choice = self._choice(i, piece)
        return "" if choice is None else self.event(choice)

    def choice(self, i: int, output: RequestOutput, k: int) -> dict[str, Any]:
        if self._echo is not None and self._wants_logprobs:
            tokens, prompt = output.prompt_token_ids, i // self.request.choices_per_prompt
            self._prompt_entries[prompt] = prompt_entries(tokens, output, self._top)
        choice = self._choice(i, output.outputs[k])
        assert choice is not None, "it has ended"
        if self._prompt_top is not None:
            choice["prompt_logprobs"] = prompt_logprobs(self.names, output, self._prompt_top)
        return choice

    def _choice(self, i: int, part: StreamPiece | CompletionOutput) -> dict[str, Any] | None:
        """Choice `i`, as far as it is told now. None if there is nothing to tell."""
        prompt, begins, reason = i // self.request.choices_per_prompt, i not in self._offsets, reason_in(part)
        text, ids, stop_reason = part.text, part.token_ids, part.stop_reason
        entries = list[Entry | None](part.logprobs or ())
        if self.hide_output:
            text, ids, entries, stop_reason, reason = "", [], [], None, reason and "length"
        if not (text or ids or reason):
            return None
        tokens = ids
        if begins:
            shows_special = not self.request.params.skip_special_tokens
            if self._echo is None or not self._wants_logprobs:
                self._offsets[i] = Offsets(self.names, shows_special)
            else:
                self._offsets[i] = Offsets(self.names, shows_special, self.request.prompts[prompt], self._echo[prompt])
            if self._echo is not None:
                text = self._echo[prompt] + text
                if self._wants_logprobs:
                    tokens = [*self.request.prompts[prompt], *ids]
                    entries = [*self._prompt_entries[prompt], *entries]
        choice = {"index": i, "text": text, "logprobs": None, "finish_reason": reason, "stop_reason": stop_reason}
        if self._wants_logprobs:
            choice["logprobs"] = completion_logprobs(self.names, self._offsets[i], tokens, entries, self._top)
        if self._wants_ids:
            choice |= {"token_ids": ids, "prompt_token_ids": list(self.request.prompts[prompt]) if begins else None}
        return choice
