"""The calls of Mistral: a list of JSON objects behind a tag, or a tag before each name and arguments (from v11 on)."""

import re
from collections.abc import Sequence
from typing import Any

from nanoinfer.requests.tool_calls.call_format import CallFormat, Schemas, Tag
from nanoinfer.requests.tool_calls.cursor import Cursor, NotACall, Reads
from nanoinfer.requests.tool_calls.hermes import read_objects
from nanoinfer.requests.tool_calls.values import read_arguments

CALLS, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
WORD = re.compile(r"[\w.\-]*")


class MistralList(CallFormat):
    """`[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]`"""

    name = "mistral"
    marks: Sequence[Sequence[str]] = ((CALLS,),)
    begins, id_length = (CALLS,), 9
    call, between, around = '{"name": "NAME", "arguments": ARGUMENTS}', ", ", (f"{CALLS}[", "]")

    def read_calls(self, cursor: Cursor, tag: str) -> Reads[None]:
        """Read calls in either way."""
        yield from cursor.run()
        if (yield from cursor.peek()) in ("[", "{"):
            yield from read_objects(cursor, self.begins)
            return
        name = yield from cursor.run(WORD)
        if (yield from cursor.take(CALL_ID)):
            yield from cursor.run(WORD)
        yield from cursor.take(ARGS)
        yield from cursor.run()
        if not name or (yield from cursor.peek()) != "{":
            raise NotACall
        cursor.begin(name)
        yield from read_arguments(cursor)
        cursor.end()


class Mistral(MistralList):
    """`[TOOL_CALLS]f[ARGS]{"a": 1}`"""

    name = "mistral_v11"
    marks, others = ((CALLS, ARGS),), (CALL_ID, ARGS)
    call, between, around = f"{CALLS}NAMEARGUMENTS", "", ("", "")

    def arguments(self, i: int, name: str, schema: Any, tag: Tag) -> tuple[str, list[str], Schemas]:
        value, rules, parts = super().arguments(i, name, schema, tag)
        call_id = f"({tag(CALL_ID)} /[a-zA-Z0-9]{{{self.id_length}}}/)?"  # of v11 alone
        return f"{call_id} {tag(ARGS)} {value}", rules, parts
