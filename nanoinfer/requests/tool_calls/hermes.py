"""Calls that are JSON objects between two tags, or in a list behind one: of Hermes and Qwen, Phi-4-mini, and Llama 3."""

import re
from collections.abc import Sequence

from nanoinfer.requests.tool_calls.call_format import CallFormat
from nanoinfer.requests.tool_calls.cursor import Cursor, NotACall, Reads
from nanoinfer.requests.tool_calls.values import COMMAS, read_arguments, read_string, read_whole, string_in, value_in

KEYS = ("arguments", "parameters")  # under which models write arguments
BETWEEN = re.compile(r"[\s,;}\]]*")  # calls, and behind the last: some models write a bracket too many


class ObjectCalls(CallFormat):
    """Calls that are objects. `strict`: see `read_call`."""

    strict = False

    def read_calls(self, cursor: Cursor, tag: str) -> Reads[None]:
        yield from read_objects(cursor, self.ends, self.strict)


class Hermes(ObjectCalls):
    """`<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>`"""

    name = "hermes"
    marks = (("<tool_call>", '"arguments"'),)
    begins, ends = ("<tool_call>",), ("</tool_call>",)
    call = '<tool_call>\n{"name": "NAME", "arguments": ARGUMENTS}\n</tool_call>'

    def is_in(self, template: str) -> bool:
        return super().is_in(template) and "<function=" not in template


class Phi(ObjectCalls):
    """`<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]<|/tool_call|>`, or `functools[...]`"""

    name = "phi4_mini"
    marks = (("functools",), ("<|tool_call|>",), ("<|tool|>",))
    begins, ends = ("<|tool_call|>", "functools"), ("<|/tool_call|>",)
    call, between, around = '{"name": "NAME", "arguments": ARGUMENTS}', ", ", ("functools[", "]")

    def read_calls(self, cursor: Cursor, tag: str) -> Reads[None]:
        if tag == "functools" and (yield from cursor.peek()) != "[":
            raise NotACall
        yield from super().read_calls(cursor, tag)


class Llama(ObjectCalls):
    """`{"name": "f", "parameters": {"a": 1}}`, first in a reply or behind `<|python_tag|>`; `; ` before another"""

    name = "llama3_json"
    marks = tuple(('"parameters": ', tag) for tag in ("<|python_tag|>", "<|start_header_id|>", "<|header_start|>"))
    begins, bare, strict = ("<|python_tag|>",), "{", True
    call, between = '{"name": "NAME", "parameters": ARGUMENTS}', "; "


def read_objects(cursor: Cursor, ends: Sequence[str] = (), strict: bool = False) -> Reads[None]:
    """Read calls in a list, or one after the other. `ends`, `strict`: see `read_call`."""
    yield from cursor.run()
    yield from cursor.take("[")
    while True:
        yield from read_call(cursor, ends, strict)
        yield from cursor.run(BETWEEN)
        if (yield from cursor.peek()) != "{":
            return


def read_call(cursor: Cursor, ends: Sequence[str] = (), strict: bool = False) -> Reads[None]:
    """Read a call that is an object with `name` and `arguments` (or `parameters`), in any order, and other members that
    mean nothing. NotACall where it is none. `ends`: see `read_arguments`. `strict`: it must have arguments, and call a
    function that is known: without a tag, any object might come."""
    before, name, arguments = cursor.calls, "", ""
    yield from cursor.run()
    if not (yield from cursor.take("{")):
        raise NotACall
    yield from cursor.run(COMMAS)
    try:
        while not (yield from cursor.take("}")):
            key = yield from read_string(cursor)
            yield from cursor.run()
            if not (yield from cursor.take(":")):
                raise NotACall
            yield from cursor.run()
            if key == "name" and not name:
                name = yield from read_string(cursor)
            elif key not in KEYS or arguments or cursor.calls > before:
                yield from read_whole(cursor)
            elif name and (yield from cursor.peek()) == "{":
                cursor.begin(name, strict)
                yield from read_arguments(cursor, ends)
            else:
                arguments = _as_object((yield from read_whole(cursor)))
            yield from cursor.run(COMMAS)
    except NotACall:
        if cursor.calls == before and not (name and arguments):
            raise
    if cursor.calls == before:
        if not name or (strict and not arguments):
            raise NotACall
        cursor.begin(name, strict)
        cursor.add_arguments(arguments or "{}")
    cursor.end()


def _as_object(written: str) -> str:
    """Arguments as an object, if they are the text of one, or null. NotACall if they are not."""
    if written.startswith('"'):
        written = value_in(string_in(written).strip() or "null")
    if written == "null":
        return "{}"
    if not written.startswith("{"):
        raise NotACall
    return written
