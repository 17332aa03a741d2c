"""Replies: how the completions of a chat request are read: reasoning, text, and calls."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

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
    """A whole reply. `is_whole`: of the last call (see CallEnd)."""

    text: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    is_whole: bool = True

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
        else:
            self.is_whole = part.is_whole


class Replies:
    """Those to one request. `may_have_parts`: whether there may be anything but text."""

    def __init__(self, service: Service, body: ChatRequest, request: GenerationRequest, tools: Tools):
        tokenizer = service.tokenizer
        self._format = (format_of(tokenizer) or HERMES) if tools.definitions is not None else None
        self._tokenizer, self._reasoning = tokenizer, reasoning_of(tokenizer)
        state = None if self._reasoning is None else self._reasoning.state(tokenizer, request.prompts[0])
        self._is_thinking = state == "open"
        self._token_ids = defaultdict[int, list[int]](list)  # by choice
        self._reasoning_tokens = 0
        self._schemas = tools.schemas
        self._hidden = special_tags(service, body, tools)
        self.may_have_parts = self._format is not None or self._reasoning is not None

    def parser(self) -> ReplyParser:
        """What reads one of them, piece by piece."""
        return ReplyParser(self._format, self._reasoning, self._is_thinking, self._hidden, self._schemas)

    def note(self, i: int, token_ids: Sequence[int], has_ended: bool) -> None:
        """Note new tokens of choice `i`, for `usage`."""
        if self._reasoning is not None:
            self._token_ids[i] += token_ids
            if has_ended:
                ids = self._token_ids.pop(i)
                self._reasoning_tokens += self._reasoning.count_tokens(self._tokenizer, ids, self._is_thinking)

    def usage(self) -> dict[str, Any]:
        """What OpenAI's `usage` says besides, once all choices have ended: nothing if the model does not reason."""
        details = {"reasoning_tokens": self._reasoning_tokens}
        return {} if self._reasoning is None else {"completion_tokens_details": details}

    def whole(self, text: str) -> Reply:
        """The reply that the text of a completion is."""
        reply = Reply()
        for part in self.parser().read(text, last=True):
            reply.add(part)
        return reply
