"""The calls of DeepSeek: names and JSON between tags, from V3.1 on without a fence around the JSON."""

import re
from collections.abc import Sequence

from nanoinfer.requests.tool_calls.call_format import CallFormat
from nanoinfer.requests.tool_calls.cursor import Cursor, NotACall, Reads
from nanoinfer.requests.tool_calls.values import read_arguments

ALL, ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
FENCE, FENCE_END = "```json", "```"
WORD = re.compile(r"[^<\n`{]*")


class DeepSeek(CallFormat):
    """`<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>`"""

    name = "deepseek_v31"
    marks: Sequence[Sequence[str]] = ((ALL,),)
    begins, ends, others = (ALL, CALL), (CALL_END, ALL_END, FENCE_END), (SEPARATOR,)
    call, between, around = f"{CALL}NAME{SEPARATOR}ARGUMENTS{CALL_END}", "", (ALL, ALL_END)

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


class DeepSeekFenced(DeepSeek):
    """`...<｜tool▁call▁begin｜>function<｜tool▁sep｜>f`, and the arguments in a block of code"""

    name = "deepseek_v3"
    marks = ((ALL, FENCE),)
    call = f"{CALL}function{SEPARATOR}NAME\n{FENCE}\nARGUMENTS\n{FENCE_END}{CALL_END}"
    between = "\n"
