"""Shape: how an endpoint writes a generation, whole or as a stream of events."""

import time
from collections.abc import Iterable
from typing import Any

from nanoinfer.requests.outputs import RequestOutput
from nanoinfer.requests.stream_pieces import StreamPiece
from nanoinfer.server.errors import ApiError
from nanoinfer.server.generation import Generation, Wish, ended_early
from nanoinfer.server.json_text import dumps, quoted
from nanoinfer.server.token_names import TokenNames
from nanoinfer.server.usage import usage_of
from nanoinfer.version import __version__

DONE = "data: [DONE]\n\n"


class Shape:
    """What the endpoints have in common. A subclass writes choices.

    A choice's events are written by hand around its text, since this happens per token. `index` in `piece` is the
    completion's (see `Generation.read`); an answer has `copies` choices for each.
    """

    stream_object = whole_object = ""
    hide_output = False

    def __init__(self, answer_id: str, wish: Wish, names: TokenNames, include_usage: bool):
        self.answer_id, self.wish, self.names, self.include_usage = answer_id, wish, names, include_usage
        self.created = int(time.time())
        self._ending = ',"usage":null}\n\n' if include_usage else "}\n\n"
        self._beginning = f'data: {self._common(self.stream_object)[:-1]},"choices":['

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
        return f'{self._beginning}],"usage":{dumps(usage_of(generation, self.hide_output))}}}\n\n{DONE}'

    def event(self, choices: Iterable[str]) -> str:
        """One event with these choices, each in JSON."""
        return f"{self._beginning}{','.join(choices)}]{self._ending}"

    def _fields(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created,
            "model": self.wish.model,
            "system_fingerprint": f"nanoinfer-{__version__}",
        }

    def _common(self, kind: str) -> str:
        return dumps(self._fields(kind))


def reason_in(piece: StreamPiece) -> str | None:
    """A piece's finish reason, unless it was ended early: then an error says why."""
    return None if ended_early(piece.finish_reason) else piece.finish_reason


def finish_fields(reason: str | None, stop_reason: int | str | None) -> str:
    """`finish_reason` and `stop_reason` in JSON."""
    if reason is None:
        return '"finish_reason":null,"stop_reason":null'
    stop = "null" if stop_reason is None else quoted(stop_reason) if isinstance(stop_reason, str) else str(stop_reason)
    return f'"finish_reason":"{reason}","stop_reason":{stop}'


def as_text(tokens: list[int]) -> str:
    """Token ids in JSON."""
    return f"[{','.join(map(str, tokens))}]"
