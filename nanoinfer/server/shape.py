"""Shape: how an endpoint writes a generation, whole or as a stream of events."""

import json
import time
from typing import Any

from nanoinfer.requests.outputs import CompletionOutput, RequestOutput
from nanoinfer.requests.stream_pieces import StreamPiece
from nanoinfer.server.errors import ApiError
from nanoinfer.server.generation import Generation, Wish, ended_early
from nanoinfer.server.logprobs import TokenNames
from nanoinfer.version import __version__

DONE = "data: [DONE]\n\n"
# Line ends for `str.splitlines`, with which some clients read streams, though not for server-sent events.
_LINE_ENDS = str.maketrans({"\x7f": "\\u007f", "\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))  # once: it writes each token


class Shape:
    """What the endpoints have in common. A subclass writes choices. `index` in `piece` is the completion's (see
    `Generation.read`); an answer has `copies` choices for each."""

    stream_object = whole_object = ""
    hide_output = False

    def __init__(self, answer_id: str, wish: Wish, names: TokenNames, include_usage: bool):
        self.answer_id, self.wish, self.names, self.include_usage = answer_id, wish, names, include_usage
        self.created = int(time.time())

    def piece(self, index: int, piece: StreamPiece) -> str:
        """The events for what is new in one completion. Empty for one that was ended early, without anything new."""
        first = index * self.wish.copies
        return "".join(self.choice_events(i, piece) for i in range(first, first + self.wish.copies))

    def choice_events(self, i: int, piece: StreamPiece) -> str:
        """The events of choice `i`."""
        raise NotImplementedError

    def whole(self, generation: Generation, outputs: list[RequestOutput]) -> dict[str, Any]:
        """The answer to a request that does not stream."""
        choices = [
            self.choice(first + copy, output, k)
            for p, output in enumerate(outputs)
            for k in range(len(output.outputs))
            for first in [(p * len(output.outputs) + k) * self.wish.copies]
            for copy in range(self.wish.copies)
        ]
        usage = usage_of(generation, self.hide_output)
        return {**self._fields(self.whole_object), "choices": choices, "usage": usage}

    def choice(self, i: int, output: RequestOutput, k: int) -> dict[str, Any]:
        """Choice `i`: completion `k` of a prompt's output."""
        raise NotImplementedError

    def last_events(self, generation: Generation, error: ApiError | None) -> str:
        """What comes after the choices' events: usage, or what went wrong; then the end."""
        if error is not None:
            return f"data: {dumps(error.content)}\n\n{DONE}"
        if not self.include_usage:
            return DONE
        usage = usage_of(generation, self.hide_output)
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
            "model": self.wish.model,
            "system_fingerprint": f"nanoinfer-{__version__}",
        }


def reason_in(piece: StreamPiece | CompletionOutput) -> str | None:
    """A piece's finish reason, unless it was ended early: then an error says why."""
    return None if ended_early(piece.finish_reason) else piece.finish_reason


def dumps(value: Any) -> str:
    """`value` as JSON. ValueError for NaN and infinities, which JSON does not have."""
    text = _ENCODER.encode(value)
    return text if text.isascii() else text.translate(_LINE_ENDS)


def usage_of(generation: Generation, hide_output: bool = False) -> dict[str, Any]:
    """OpenAI's `usage`. Each of `n` choices counts, also those that are copies; a prompt counts once. `hide_output`: the
    answer is only the prompt."""
    wish = generation.wish
    output = 0 if hide_output else generation.counts.output_tokens * wish.copies
    return {
        "prompt_tokens": wish.prompt_tokens,
        "completion_tokens": output,
        "total_tokens": wish.prompt_tokens + output,
        "prompt_tokens_details": {"cached_tokens": generation.counts.cached_tokens},
    }
