"""ReasoningFormat: how a family of models marks what it thinks before it answers."""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nanoinfer.requests.tool_calls.call_format import Tag
from nanoinfer.requests.tool_calls.cursor import Cursor, Reads


@dataclass(frozen=True)
class ReasoningFormat:
    """A thought between two tags, at the beginning of a reply. `name`: what `--reasoning-parser` calls it."""

    name: str
    begin: str
    end: str

    def is_in(self, template: str) -> bool:
        """Whether a chat template knows thoughts."""
        return self.begin in template or self.end in template

    def state(self, tokenizer: Any, prompt_ids: Sequence[int] | np.ndarray) -> str | None:
        """Whether a reply goes on with a thought that its prompt has opened ("open"), "may" begin with one, or neither
        (None), as the prompt ends with one that is closed."""
        last = tokenizer.decode([int(token) for token in prompt_ids[-16:]], skip_special_tokens=False).rstrip()
        return "open" if last.endswith(self.begin) else None if last.endswith(self.end) else "may"

    def grammar(self, is_open: bool, tag: Tag) -> tuple[str, str, list[str]]:
        """What may precede an output that has a grammar, what precedes it if it is no call, and rules, in Lark's notation:
        a thought with its tags; `is_open`: without the first."""
        end, (text, rules) = tag(self.end), text_until(self.end, tag)
        thought = f"{text} {end if text == 'THOUGHT' else ''} /\\n{{0,2}}/"
        return (thought if is_open else f"({tag(self.begin)} {thought})?"), "", rules

    def count_tokens(self, tokenizer: Any, token_ids: Sequence[int], is_open: bool) -> int:
        """How many tokens of an output belong to the thought with which it begins, tags included. Optimisation: where the
        last tag is one token, nothing long is decoded, for which all streams would wait."""

        def text(count: int) -> str:
            return tokenizer.decode(token_ids[:count], skip_special_tokens=False)

        if not is_open and not text(16).lstrip().startswith(self.begin):
            return 0
        match tokenizer.encode(self.end, add_special_tokens=False):
            case [end] if end in token_ids:
                return token_ids.index(end) + 1
        return bisect_left(range(len(token_ids)), True, key=lambda count: self.end in text(count))

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags that have a meaning."""
        return self.begin, self.end

    def read(self, cursor: Cursor, hidden: Sequence[str] = ()) -> Reads[None]:
        """Read a thought whose first tag has been read, and what is between it and the answer. Newlines around a thought
        belong to neither: templates write them. `hidden`: see ReplyParser."""
        has_begun, newlines = False, ""  # newlines that may be the last

        def add(text: str) -> None:
            nonlocal newlines, has_begun
            text = newlines + text if has_begun else text.lstrip("\n")
            inner = text.rstrip("\n")
            newlines, has_begun = text[len(inner) :], has_begun or bool(inner)
            cursor.add_reasoning(inner)

        while (yield from cursor.until((self.end, *hidden), add)) not in (self.end, ""):
            pass
        while (yield from cursor.take("\n")):
            pass


def text_until(end: str, tag: Tag) -> tuple[str, list[str]]:
    """A rule for any text up to a tag, with the tag if that is no special token; and what else it needs."""
    escaped = re.escape(end).replace("/", r"\/")
    if tag(end).startswith("<["):
        return "THOUGHT", [f"THOUGHT: /(?s:.*)/ & ~/(?s:.*{escaped}.*)/"]
    return "thought", ["thought[lazy]: THOUGHT", f"THOUGHT: /(?s:.*){escaped}/ & ~/(?s:.*{escaped}.+)/"]


THINK = ReasoningFormat("think", "<think>", "</think>")
