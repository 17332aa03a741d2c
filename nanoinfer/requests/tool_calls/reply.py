"""ReplyParser: reads the text of one completion, piece by piece, as a reply: reasoning, text, and calls."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from nanoinfer.requests.tool_calls.call_format import CallFormat
from nanoinfer.requests.tool_calls.cursor import CallBegin, CallEnd, Cursor, NotACall, Part, Reads
from nanoinfer.requests.tool_calls.gptoss import Channels
from nanoinfer.requests.tool_calls.reasoning import ReasoningFormat


class ReplyParser:
    """What is read does not depend on how the text is cut into pieces. Text that may belong to a call is held back.

    `call_format`: None if calls are text. `reasoning`: None if thoughts are. `is_thinking`: the prompt has opened a
    thought. `hidden`: special tokens, which are in the text for the tags among them, and which no client sees. `schemas`:
    name of a function → JSON schema of its arguments.

    A call begins once it has a name and arguments that begin as an object. What is no call is text. White space and
    closing tags behind a call belong to no text, and a closing tag may be missing. `calls`: how many have begun.
    """

    def __init__(
        self,
        call_format: CallFormat | None = None,
        reasoning: ReasoningFormat | None = None,
        is_thinking: bool = False,
        hidden: Sequence[str] = (),
        schemas: Mapping[str, Any] | None = None,
    ):
        self._format, self._reasoning, self._is_thinking = call_format, reasoning, is_thinking
        self._hidden = hidden
        self._cursor = Cursor(schemas, call_format.id_length if call_format else None)
        self._reading = self._read()

    @property
    def calls(self) -> int:
        """How many calls have begun."""
        return self._cursor.calls

    @property
    def is_whole(self) -> bool:
        """Whether the last call that has ended is whole (see CallEnd)."""
        return self._cursor.is_whole

    def read(self, text: str, last: bool = False) -> list[Part]:
        """What a piece adds, in order. With `last`, nothing is held back; nothing may be read after it."""
        self._cursor.text += text
        self._cursor.is_last = last
        next(self._reading, None)
        parts, self._cursor.parts = self._cursor.parts, []
        return [part for kind, run in groupby(parts, type) for part in _joined(kind, list(run))]

    def _read(self) -> Reads[None]:
        cursor, tags = self._cursor, self._format.begins if self._format else ()
        if isinstance(self._reasoning, Channels):
            yield from self._reasoning.read_reply(cursor, self._format is not None, self._hidden)
            return
        yield from self._read_thoughts()
        if self._format is not None and self._format.bare:
            begin = cursor.at
            yield from cursor.run()
            character = yield from cursor.peek()
            if not character or character not in self._format.bare or not (yield from self._read_calls("")):
                cursor.at = begin
        while tag := (yield from cursor.until({*tags, *self._hidden}, cursor.add_text)):
            if tag not in tags:
                continue
            begin = cursor.at
            if not (yield from self._read_calls(tag)):
                cursor.at = begin
                cursor.add_text("" if tag in self._hidden else tag)

    def _read_calls(self, tag: str) -> Reads[bool]:
        """Read calls and what belongs to them. False if there is none."""
        assert self._format is not None, "it has this tag"
        before = self._cursor.calls
        try:
            yield from self._format.read_calls(self._cursor, tag)
        except NotACall:
            if self._cursor.calls == before:
                return False
            self._cursor.undo()
        yield from self._pass_ends(self._format.ends)
        return True

    def _read_thoughts(self) -> Reads[None]:
        """Read the thoughts with which a reply begins."""
        cursor, reasoning = self._cursor, self._reasoning
        if reasoning is None:
            return
        if self._is_thinking:
            yield from reasoning.read(cursor, self._hidden)
        while True:
            begin = cursor.at
            yield from cursor.run()
            if not (yield from cursor.take(reasoning.begin)):
                cursor.at = begin
                return
            yield from reasoning.read(cursor, self._hidden)

    def _pass_ends(self, ends: Sequence[str]) -> Reads[None]:
        """Read the white space and the closing tags behind a call, each once, as it may begin something else; at the end,
        also a part of one."""
        cursor = self._cursor
        yield from cursor.run()
        while end := (yield from cursor.take_any(ends)):
            ends = [each for each in ends if each != end]
            yield from cursor.run()
        if cursor.is_last and any(end.startswith(cursor.text[cursor.at :]) for end in ends):
            cursor.at = len(cursor.text)


def _joined(kind: type, run: list[Any]) -> list[Part]:
    """Parts of one kind in a row; pieces of text as one."""
    return run if kind in (CallBegin, CallEnd) else [replace(run[0], text="".join(part.text for part in run))]


def end_of_first_call(parser: ReplyParser, text: str) -> int | None:
    """How much of the reply belongs to its first call and what precedes it, once a piece has ended that call."""
    return next((part.at for part in parser.read(text) if isinstance(part, CallEnd)), None)
