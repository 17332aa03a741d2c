"""The calls of DeepSeek: names and JSON between tags, from V3.1 on without a fence around the JSON."""

import re

from nanoinfer.requests.tool_calls.call_format import JsonCalls, Tag, quoted
from nanoinfer.requests.tool_calls.cursor import Cursor, NotACall, Reads
from nanoinfer.requests.tool_calls.json_text import read_arguments

ALL, ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
FENCE, FENCE_END = "```json", "```"
WORD = re.compile(r"[^<\n`{]*")


class DeepSeek(JsonCalls):
    """`<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>`"""

    name = "deepseek_v31"
    begins, ends = (ALL, CALL), (CALL_END, ALL_END, FENCE_END)
    between, around = "", (ALL, ALL_END)

    @property
    def tags(self) -> tuple[str, ...]:
        return (ALL, ALL_END, CALL, CALL_END, SEPARATOR)

    def is_in(self, template: str) -> bool:
        return ALL in template

    def read_calls(self, cursor: Cursor, tag: str) -> Reads[None]:
        """Read calls in either way."""
        yield from cursor.run()
        if tag == ALL and not (yield from cursor.take(CALL)):
            raise NotACall
        name = yield from cursor.run(WORD)
        if not (yield from cursor.take(SEPARATOR)):
            raise NotACall
        yield from cursor.run()
        if (yield from cursor.peek()) != "{":
            name = yield from cursor.run(WORD)
            yield from cursor.run()
            yield from cursor.take(FENCE)
            yield from cursor.run()
        if not name.strip() or (yield from cursor.peek()) != "{":
            raise NotACall
        cursor.begin(name.strip())
        yield from read_arguments(cursor, (CALL_END,))
        cursor.end()

    def one(self, name: str, tag: Tag) -> tuple[str, str]:
        return f"{tag(CALL)} {quoted(name)} {tag(SEPARATOR)}", tag(CALL_END)


class DeepSeekFenced(DeepSeek):
    """`...<｜tool▁call▁begin｜>function<｜tool▁sep｜>f`, and the arguments in a block of code"""

    name = "deepseek_v3"
    between = "\n"

    def is_in(self, template: str) -> bool:
        return ALL in template and FENCE in template

    def one(self, name: str, tag: Tag) -> tuple[str, str]:
        before = quoted(f"{name}\n{FENCE}\n")
        return f'{tag(CALL)} "function" {tag(SEPARATOR)} {before}', f"{quoted(f'{chr(10)}{FENCE_END}')} {tag(CALL_END)}"
