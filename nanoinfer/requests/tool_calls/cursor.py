"""Cursor: reads a text while it is written; and the parts of a reply that it finds.

What reads with it is a generator: it yields where it waits for the next piece, so a format reads as if the text were there.
"""

import re
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar
from uuid import uuid4

from nanoinfer.requests.tool_calls.arguments import type_of

T = TypeVar("T")
Reads = Generator[None, None, T]  # of what it returns, in the end
SPACE = re.compile(r"\s*")
MANY = 4096  # characters that are kept although they have been read: forgetting copies the others


@dataclass
class Text:
    """Text that is for the reader."""

    text: str


@dataclass
class Reasoning:
    """What the model thinks before it answers."""

    text: str


@dataclass
class CallBegin:
    """A call begins. `index` counts the calls of a reply from 0; `id` is new."""

    index: int
    id: str
    name: str


@dataclass
class Arguments:
    """The next piece of a call's arguments. Put together, they are the JSON text of an object, or what the model has
    written in its place."""

    index: int
    text: str


@dataclass
class CallEnd:
    """A call has ended: behind so many characters of the reply. `is_whole`: its arguments are the JSON of an object."""

    index: int
    at: int
    is_whole: bool = True


Part = Text | Reasoning | CallBegin | Arguments | CallEnd


class NotACall(Exception):
    """What follows a tag is no call, but text; or what follows in a call is no value, or ends too early."""


class Cursor:
    """`text`: what is kept of the text; `at`: how much of it has been read; `is_last`: no more will come. `parts`: what was
    found since the last piece. `calls`: how many calls have begun; `is_whole`: see CallEnd, of the last that has ended.
    `schemas`: name of a function → JSON schema of its arguments, as far as they are known. `id_length`: of a call's id, if
    it must have one."""

    def __init__(self, schemas: Mapping[str, Any] | None = None, id_length: int | None = None) -> None:
        self.schemas, self._id_length = schemas or {}, id_length
        self.text, self.at, self.is_last = "", 0, False
        self.parts: list[Part] = []
        self.calls, self.is_whole = 0, True
        self._arguments: list[str] = []  # of the last call
        self._dropped = 0  # characters before `text`

    # --- what is found ---

    def add_text(self, text: str) -> None:
        """Some text."""
        if text:
            self.parts.append(Text(text))

    def add_reasoning(self, text: str) -> None:
        """A piece of a thought."""
        if text:
            self.parts.append(Reasoning(text))

    def begin(self, name: str, must_be_known: bool = False) -> None:
        """A call of this function. NotACall if no client could read its name, or if it is not known and must be."""
        if must_be_known and self.schemas and name not in self.schemas:
            raise NotACall
        try:
            name.encode()
        except UnicodeError:
            raise NotACall from None
        new = uuid4().hex
        call_id = new[: self._id_length] if self._id_length else f"call_{new[:24]}"
        self.parts.append(CallBegin(self.calls, call_id, name))
        self.calls += 1
        self._arguments = []

    def add_arguments(self, text: str) -> None:
        """A piece of the call's arguments."""
        if text:
            self.parts.append(Arguments(self.calls - 1, text))
            self._arguments.append(text)
        if self.at > MANY:
            self.forget()

    def end(self) -> None:
        """The call has ended."""
        self.is_whole = type_of("".join(self._arguments)) == "object"
        self.parts.append(CallEnd(self.calls - 1, self._dropped + self.at, self.is_whole))
        self.forget()

    def undo(self) -> None:
        """Go back to where the last call ended, if none has begun since."""
        self.at = 0

    def forget(self) -> None:
        """What has been read is needed no more."""
        self._dropped += self.at
        self.text, self.at = self.text[self.at :], 0

    # --- reading ---

    def more(self) -> Reads[bool]:
        """Wait for the next piece. False if there is none."""
        if self.is_last:
            return False
        yield
        return True

    def peek(self) -> Reads[str]:
        """The next character, empty at the end."""
        while self.at == len(self.text):
            if not (yield from self.more()):
                return ""
        return self.text[self.at]

    def next(self) -> Reads[str]:
        """Read the next character; empty at the end."""
        character = yield from self.peek()
        self.at += len(character)
        return character

    def take(self, wanted: str) -> Reads[bool]:
        """Read `wanted`, if it comes next."""
        while not self.text.startswith(wanted, self.at):
            if not wanted.startswith(self.text[self.at : self.at + len(wanted)]) or not (yield from self.more()):
                return False
        self.at += len(wanted)
        return True

    def take_any(self, wanted: Sequence[str]) -> Reads[str]:
        """Read the first of `wanted` that comes next, and return it; empty if none does."""
        for each in wanted:
            if (yield from self.take(each)):
                return each
        return ""

    def run(self, characters: re.Pattern[str] = SPACE) -> Reads[str]:
        """Read all that match `characters`, a class of characters with a star: by default, white space."""
        begin = self.at
        while True:
            found = characters.match(self.text, self.at)
            assert found is not None, "it may be empty"
            self.at = found.end()
            if self.at < len(self.text) or not (yield from self.more()):
                return self.text[begin : self.at]

    def until(self, tags: Collection[str], add: Callable[[str], None]) -> Reads[str]:
        """Hand on what comes before the first of `tags`, as it comes, and read the tag. Empty without one: at the end."""
        pattern, beginnings, longest = _finder(frozenset(tags))
        while (found := pattern.search(self.text, self.at)) is None:
            rest = self.text[self.at :]
            held = next((n for n in range(min(len(rest), longest), 0, -1) if rest[-n:] in beginnings), 0)
            certain = len(rest) - (0 if self.is_last else held)
            self.at += certain
            add(rest[:certain])
            self.forget()
            if not (yield from self.more()):
                return ""
        before = self.text[self.at : found.start()]
        self.at = found.end()
        add(before)
        return found[0]


@lru_cache(maxsize=64)
def _finder(tags: frozenset[str]) -> tuple[re.Pattern[str], frozenset[str], int]:
    """What finds the first of `tags`, all that may begin one, and the longest of these. There may be hundreds of tags: all
    special tokens of a model."""
    pattern = re.compile("|".join(map(re.escape, sorted(tags, key=len, reverse=True))) or "(?!)")
    beginnings = frozenset(tag[:n] for tag in tags for n in range(1, len(tag)))
    return pattern, beginnings, max(map(len, beginnings), default=0)
