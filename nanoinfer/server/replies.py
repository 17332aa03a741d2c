"""Replies: how the completions of a chat request are read: reasoning, text, and calls."""

from collections import defaultdict

from nanoinfer.outputs import CompletionOutput, StreamPiece
from nanoinfer.requests.tool_calls.cursor import Part, Text
from nanoinfer.requests.tool_calls.registry import format_of, reasoning_of
from nanoinfer.requests.tool_calls.reply import ReplyParser
from nanoinfer.server.formatter import reason_in
from nanoinfer.server.generation import GenerationRequest
from nanoinfer.server.service import Service


class Replies:
    """Those to one request. `reasoning`: how the model marks its thoughts; None if it has none. `reasoning_tokens`: of the
    choices that have ended."""

    def __init__(self, service: Service, request: GenerationRequest):
        self._tokenizer, tools, hidden = service.tokenizer, request.tools, request.hidden_tokens
        call_format = None if tools.definitions is None else format_of(self._tokenizer)
        reasoning = self.reasoning = reasoning_of(self._tokenizer)
        state = None if reasoning is None else reasoning.state(self._tokenizer, request.prompts[0])
        is_thinking = self._is_thinking = state == "open"
        # By choice: what reads it, and its tokens so far.
        self._parsers = defaultdict[int, ReplyParser](
            lambda: ReplyParser(call_format, reasoning, is_thinking, hidden, tools.schemas)
        )
        self._token_ids = defaultdict[int, list[int]](list)
        self._is_plain = call_format is None and reasoning is None
        self.reasoning_tokens = 0

    def read(self, i: int, piece: StreamPiece | CompletionOutput) -> list[Part]:
        """What a piece adds to choice `i`."""
        if self._is_plain:
            return [Text(piece.text)] if piece.text else []
        has_ended = reason_in(piece) is not None
        if self.reasoning is not None:
            self._token_ids[i] += piece.token_ids
            if has_ended:
                ids = self._token_ids.pop(i)
                self.reasoning_tokens += self.reasoning.count_tokens(self._tokenizer, ids, self._is_thinking)
        return self._parsers[i].read(piece.text, has_ended)

    def has_calls(self, i: int) -> bool:
        """Whether choice `i` has called something so far."""
        return self._parsers[i].calls > 0

    def is_whole(self, i: int) -> bool:
        """Whether its last call is whole (see CallEnd)."""
        return self._parsers[i].is_whole
