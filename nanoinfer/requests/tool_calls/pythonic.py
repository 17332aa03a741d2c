"""Calls written as in Python: of Llama 3.2 and 4, LFM2 and Gemma 3. Their arguments become JSON, value by value."""

import json
import re
from collections.abc import Sequence
from typing import Any

from nanoinfer.requests.tool_calls.arguments import properties_of
from nanoinfer.requests.tool_calls.call_format import CallFormat, Schemas, Tag, quoted
from nanoinfer.requests.tool_calls.cursor import Cursor, NotACall, Reads
from nanoinfer.requests.tool_calls.hermes import read_objects
from nanoinfer.requests.tool_calls.values import COMMAS, read_value

WORD = re.compile(r"[\w.\-]*")
BETWEEN = re.compile(r"[\s,)\]]*")  # calls, and behind the last


class Pythonic(CallFormat):
    """`[f(a=1), g(b="x")]`, at the beginning of a reply or behind a tag"""

    name = "pythonic"
    marks: Sequence[Sequence[str]] = (("[func_name1(",), ("<|tool_call_start|>",))
    begins: Sequence[str] = ("<|python_start|>", "<|tool_call_start|>")
    ends: Sequence[str] = ("<|python_end|>", "<|tool_call_end|>")
    bare = "["
    call, between, around = "NAME(ARGUMENTS)", ", ", ("[", "]")

    def read_calls(self, cursor: Cursor, tag: str) -> Reads[None]:
        yield from cursor.run()
        yield from cursor.take("[")
        while True:
            yield from cursor.take("print(")
            yield from read_function(cursor)
            between = yield from cursor.run(BETWEEN)
            if not between or "]" in between or (yield from cursor.peek()) in ("`", ""):
                return

    def arguments(self, i: int, name: str, schema: Any, tag: Tag) -> tuple[str, list[str], Schemas]:
        rules, parts, properties = list[str](), {}, properties_of(name, schema, WORD)
        for j, (key, inner, is_required) in enumerate(properties):
            value, rest = f"{quoted(f'{key}=')} @a{i}_{j}", f"more{i}_{j + 1}"
            others = "" if is_required else f" | first{i}_{j + 1}"
            mark = "" if is_required else "?"
            rules.append(f"first{i}_{j}: {value} {rest}{others}")
            rules.append(f'more{i}_{j}: (", " {value}){mark} {rest}')
            parts[f"a{i}_{j}"] = inner
        rules += [f'{each}{i}_{len(properties)}: ""' for each in ("first", "more")]
        return f"first{i}_0", rules, parts


class Gemma(Pythonic):
    """Blocks of code: `f(a=1)` in ```` ```tool_code ````, or a JSON object in ```` ```json ````; or as Pythonic"""

    name = "gemma3"
    marks = (("tool_code",),)
    begins, ends = ("```tool_code", "```json"), ("```",)
    between, around = "\n", ("```tool_code\n", "\n```")

    def read_calls(self, cursor: Cursor, tag: str) -> Reads[None]:
        yield from read_objects(cursor, strict=True) if tag == "```json" else super().read_calls(cursor, tag)


def read_function(cursor: Cursor) -> Reads[None]:
    """Read `f(a=1, b="x")`, as far as it goes. NotACall where it is none."""
    yield from cursor.run()
    name = yield from cursor.run(WORD)
    if not name or not (yield from cursor.take("(")):
        raise NotACall
    before = "{"
    yield from cursor.run()
    try:
        while not (yield from cursor.take(")")):
            key = yield from cursor.run(WORD)
            yield from cursor.run()
            if not key or not (yield from cursor.take("=")):
                raise NotACall
            if before == "{":
                cursor.begin(name, must_be_known=True)
            cursor.add_arguments(f"{before}{json.dumps(key, ensure_ascii=False)}: ")
            before = ", "
            yield from read_value(cursor, cursor.add_arguments)
            yield from cursor.run(COMMAS)
        if before == "{":
            cursor.begin(name, must_be_known=True)
        cursor.add_arguments("{}" if before == "{" else "}")
    except NotACall:
        if before == "{":
            raise
    cursor.end()
