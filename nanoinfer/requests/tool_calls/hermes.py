"""Calls that are JSON objects between two tags, or in a list behind one: of Hermes and Qwen, Phi-4-mini, and Llama 3."""

from nanoinfer.requests.tool_calls.call_format import JsonCalls, Tag, named, quoted
from nanoinfer.requests.tool_calls.cursor import Cursor, NotACall, Reads
from nanoinfer.requests.tool_calls.json_text import read_call, read_calls


class Hermes(JsonCalls):
    """`<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>`"""

    name = "hermes"
    begins, ends = ("<tool_call>",), ("</tool_call>",)

    def is_in(self, template: str) -> bool:
        return self.begins[0] in template and '"arguments"' in template and "<function=" not in template

    def read_calls(self, cursor: Cursor, tag: str) -> Reads[None]:
        yield from read_calls(cursor, self.ends)
        while (yield from cursor.peek()) == "{":  # some models write several between the tags
            yield from read_calls(cursor, self.ends)

    def one(self, name: str, tag: Tag) -> tuple[str, str]:
        begin, end = tag(self.begins[0]), tag(self.ends[0])
        return f'{begin} "\\n" {named(name, "arguments")}', f'"}}\\n" {end}'


class Phi(JsonCalls):
    """`<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]<|/tool_call|>`, or `functools[...]`"""

    name = "phi4_mini"
    begins, ends = ("<|tool_call|>", "functools"), ("<|/tool_call|>",)
    between, around = ", ", ("functools[", "]")

    def is_in(self, template: str) -> bool:
        return any(part in template for part in ("functools", "<|tool_call|>", "<|tool|>"))

    def read_calls(self, cursor: Cursor, tag: str) -> Reads[None]:
        if tag == "functools" and (yield from cursor.peek()) != "[":
            raise NotACall
        yield from read_calls(cursor, self.ends)

    def one(self, name: str, tag: Tag) -> tuple[str, str]:
        return named(name, "arguments"), quoted("}")


class Llama(JsonCalls):
    """`{"name": "f", "parameters": {"a": 1}}`, first in a reply or behind `<|python_tag|>`; `; ` before another"""

    name = "llama3_json"
    begins, bare = ("<|python_tag|>",), "{"
    between = "; "

    def is_in(self, template: str) -> bool:
        return '"parameters": ' in template and any(
            tag in template for tag in (*self.begins, "<|start_header_id|>", "<|header_start|>")
        )

    def read_calls(self, cursor: Cursor, tag: str) -> Reads[None]:
        while True:
            yield from read_call(cursor, strict=True)
            yield from cursor.run()
            if not (yield from cursor.take(";")) and (yield from cursor.peek()) != "{":
                return

    def one(self, name: str, tag: Tag) -> tuple[str, str]:
        return named(name, "parameters"), quoted("}")
