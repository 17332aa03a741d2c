"""Replies of gpt-oss: messages in channels, of which one is for thoughts, and one for calls."""

import re
from collections.abc import Sequence

from nanoinfer.requests.tool_calls.call_format import CallFormat, Schemas, Tag
from nanoinfer.requests.tool_calls.cursor import Cursor, Reads
from nanoinfer.requests.tool_calls.reasoning import ReasoningFormat, text_until
from nanoinfer.requests.tool_calls.values import read_arguments

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
CALLED = re.compile(r"to=functions\.([\w.\-]+)")


class GptOss(CallFormat):
    """`<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>`, which Channels reads"""

    name = "gptoss"
    marks = ((CHANNEL,),)
    others = (START, CHANNEL, CONSTRAIN, MESSAGE, *ENDS)
    call = f"{CHANNEL}commentary to=functions.NAME {CONSTRAIN}json{MESSAGE}ARGUMENTS"

    def grammar(self, functions: Schemas, parallel: bool, tag: Tag) -> tuple[list[str], Schemas]:
        return super().grammar(functions, False, tag)  # an end token follows a call


class Channels(ReasoningFormat):
    """`<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...`"""

    def is_in(self, template: str) -> bool:
        return CHANNEL in template

    @property
    def tags(self) -> tuple[str, ...]:
        return (START, CHANNEL, CONSTRAIN, MESSAGE, *ENDS)

    def grammar(self, is_open: bool, tag: Tag) -> tuple[str, str, list[str]]:
        text, rules = text_until(self.end, tag)
        end = tag(self.end) if text == "THOUGHT" else ""
        channel, message = tag(CHANNEL), tag(MESSAGE)
        thought = f'({channel} "analysis" {message} {text} {end} {tag(START)} "assistant")?'
        return thought, f'{channel} "final" {message}', rules

    def read_reply(self, cursor: Cursor, has_calls: bool, hidden: Sequence[str]) -> Reads[None]:
        """Read a whole reply. `has_calls`: messages to functions are calls."""
        is_first = True
        while True:
            pieces: list[str] = []
            if not (yield from cursor.until((MESSAGE,), pieces.append)):
                text = "".join(pieces)
                cursor.add_text(re.sub("|".join(map(re.escape, hidden)) or "(?!)", "", text) if is_first else "")
                return
            head, is_first = "".join(pieces), False
            if has_calls and (called := CALLED.search(head)):
                cursor.begin(called[1])
                yield from read_arguments(cursor, ENDS)
                cursor.end()
                continue
            add = cursor.add_reasoning if f"{CHANNEL}analysis" in head else cursor.add_text
            while (yield from cursor.until((*ENDS, *hidden), add)) not in (*ENDS, ""):
                pass


CHANNELS = Channels("gptoss", f"{CHANNEL}analysis{MESSAGE}", "<|end|>")
