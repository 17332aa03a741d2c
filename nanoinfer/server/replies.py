"""Replies: how the completions of a chat request are read: reasoning, text, and calls."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from nanoinfer.requests.tool_calls.cursor import Arguments, CallBegin, Part, Reasoning, Text
from nanoinfer.requests.tool_calls.registry import HERMES, format_of, reasoning_of
from nanoinfer.requests.tool_calls.reply import ReplyParser
from nanoinfer.server.generation import GenerationRequest
from nanoinfer.server.protocol import ChatRequest
from nanoinfer.server.request_parsing import Tools, special_tags
from nanoinfer.server.service import Service


@dataclass
class Call:
    """One call: `arguments` is JSON text."""

    id: str
    name: str
    arguments: str = ""


@dataclass
class Reply:
    """A whole reply."""

    text: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)

    def add(self, part: Part) -> None:
        """What comes next."""
        if isinstance(part, Text):
            self.text += part.text
        elif isinstance(part, Reasoning):
            self.reasoning += part.text
        elif isinstance(part, CallBegin):
            self.calls.append(Call(part.id, part.name))
        elif isinstance(part, Arguments):
            self.calls[part.index].arguments += part.text


class Replies:
    """Those to one request. `may_have_parts`: whether there may be anything but text."""

    def __init__(self, service: Service, body: ChatRequest, request: GenerationRequest, tools: Tools):
        tokenizer = service.tokenizer
        self._format = (format_of(tokenizer) or HERMES) if tools.definitions is not None else None
        self._tokenizer, self._reasoning = tokenizer, reasoning_of(tokenizer)
        state = None if self._reasoning is None else self._reasoning.state(tokenizer, request.prompts[0])
        self._is_thinking = state == "open"
        self._schemas = tools.schemas
        self._hidden = special_tags(service, body, tools)
        self.may_have_parts = self._format is not None or self._reasoning is not None

    def parser(self) -> ReplyParser:
        """What reads one of them, piece by piece."""
        return ReplyParser(self._format, self._reasoning, self._is_thinking, self._hidden, self._schemas)

    def reasoning_tokens(self, token_ids: Sequence[int]) -> int | None:
        """How many tokens of a completion are reasoning; None if the model has none."""
        if self._reasoning is None:
            return None
        return self._reasoning.count_tokens(self._tokenizer, token_ids, self._is_thinking)

    def whole(self, text: str) -> Reply:
        """The reply that the text of a completion is."""
        reply = Reply()
        for part in self.parser().read(text, last=True):
            reply.add(part)
        return reply
