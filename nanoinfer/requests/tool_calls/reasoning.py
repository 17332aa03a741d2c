"""ReasoningFormat: how a family of models marks what it thinks before it answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

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

    def is_open(self, tokenizer: Any, prompt_ids: Sequence[int] | np.ndarray) -> bool:
        """Whether a prompt ends with the tag that begins a thought, as some templates have it."""
        last = [int(token) for token in prompt_ids[-16:]]
        return tokenizer.decode(last, skip_special_tokens=False).rstrip().endswith(self.begin)

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


THINK = ReasoningFormat("think", "<think>", "</think>")
