"""The calls of Mistral: a list of JSON objects behind a tag, or a tag before each name and arguments (from v11 on)."""

import re

from nanoinfer.requests.tool_calls.call_format import JsonCalls, Tag, named, quoted
from nanoinfer.requests.tool_calls.cursor import Cursor, NotACall, Reads
from nanoinfer.requests.tool_calls.json_text import read_arguments, read_calls

CALLS, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
NAME = re.compile(r"[\w.\-]*")


class MistralList(JsonCalls):
    """`[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]`"""

    name = "mistral"
    begins, id_length = (CALLS,), 9
    between, around = ", ", (CALLS, "]")

    def is_in(self, template: str) -> bool:
        return CALLS in template

    def read_calls(self, cursor: Cursor, tag: str) -> Reads[None]:
        """Read calls in either way."""
        yield from cursor.run()
        if (yield from cursor.peek()) in ("[", "{"):
            yield from read_calls(cursor, self.begins)
            return
        name = yield from cursor.run(NAME)
        if (yield from cursor.take(CALL_ID)):
            yield from cursor.run(NAME)
        yield from cursor.take(ARGS)
        yield from cursor.run()
        if not name or (yield from cursor.peek()) != "{":
            raise NotACall
        cursor.begin(name)
        yield from read_arguments(cursor)
        cursor.end()

    def one(self, name: str, tag: Tag) -> tuple[str, str]:
        return named(name, "arguments"), quoted("}")

    def _all(self, tag: Tag) -> list[str]:
        return [f'{tag(CALLS)} "["', '"]"']


class Mistral(MistralList):
    """`[TOOL_CALLS]f[ARGS]{"a": 1}`"""

    name = "mistral_v11"
    between, around = "", ("", "")

    @property
    def tags(self) -> tuple[str, ...]:
        return (CALLS, CALL_ID, ARGS)

    def is_in(self, template: str) -> bool:
        return CALLS in template and ARGS in template

    def one(self, name: str, tag: Tag) -> tuple[str, str]:
        return f"{tag(CALLS)} {quoted(name)} {tag(ARGS)}", ""

    def _all(self, tag: Tag) -> list[str]:
        return ["", ""]
