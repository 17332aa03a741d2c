"""The calls of Hermes and Qwen: JSON objects between two tags."""

import json
from collections.abc import Sequence

from nanoinfer.requests.tool_calls.call_format import CallFormat
from nanoinfer.requests.tool_calls.cursor import Cursor, Reads
from nanoinfer.requests.tool_calls.json_text import read_call


class Hermes(CallFormat):
    """`<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>`"""

    name = "hermes"
    begins, ends = ("<tool_call>",), ("</tool_call>",)

    def is_in(self, template: str) -> bool:
        return all(part in template for part in ("tools", *self.begins, '"arguments"')) and "<function=" not in template

    def read_calls(self, cursor: Cursor, tag: str) -> Reads[None]:
        yield from read_call(cursor, self.ends)

    def lark_rules(self, names: Sequence[str], parallel: bool) -> list[str]:
        begin, end = json.dumps(f"{self.begins[0]}\n"), json.dumps(f"\n{self.ends[0]}")  # quoted as in a Lark grammar
        before = [json.dumps(f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": ') for name in names]
        return [
            'start: call ("\\n" call)*' if parallel else "start: call",
            f"call: {begin} ({' | '.join(f'f{i}' for i in range(len(names)))}) {end}",
            *(f'f{i}: {text} @a{i} "}}"' for i, text in enumerate(before)),
        ]
