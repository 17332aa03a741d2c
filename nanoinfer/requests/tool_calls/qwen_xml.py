"""The calls of Qwen3-Coder and Qwen3.5: tags for the function and for each argument, whose values are plain text."""

import json
import re
from collections.abc import Callable
from typing import Any

from nanoinfer.requests.tool_calls.arguments import properties_of, type_of, types_of
from nanoinfer.requests.tool_calls.call_format import CallFormat, Schemas, Tag, quoted
from nanoinfer.requests.tool_calls.cursor import Cursor, NotACall, Reads
from nanoinfer.requests.tool_calls.json_text import BrokenError
from nanoinfer.requests.tool_calls.pythonic import read_literal

CALL, CALL_END, FUNCTION, FUNCTION_END = "<tool_call>", "</tool_call>", "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
NAME = re.compile(r"[^<>\n]*")
PLAIN = {
    "type",
    "title",
    "description",
    "default",
    "examples",
    "$comment",
    "$defs",
    "definitions",
    "minLength",
    "maxLength",
}


class QwenXml(CallFormat):
    """`<tool_call><function=f><parameter=a>1</parameter></function></tool_call>`"""

    name = "qwen3_coder"
    begins, ends = (CALL, FUNCTION), (FUNCTION_END, CALL_END)

    def is_in(self, template: str) -> bool:
        return FUNCTION in template and PARAMETER in template

    def read_calls(self, cursor: Cursor, tag: str) -> Reads[None]:
        """A value becomes JSON by its schema: text if that allows only text, and else what it looks like."""
        yield from cursor.run()
        if tag == CALL and not (yield from cursor.take(FUNCTION)):
            raise NotACall
        name = yield from cursor.run(NAME)
        if not name or not (yield from cursor.take(">")):
            raise NotACall
        cursor.begin(name)
        schema, count = cursor.schemas.get(name), 0
        properties = schema.get("properties", {}) if isinstance(schema, dict) else {}
        yield from cursor.run()
        while (yield from cursor.take(PARAMETER)):
            key = yield from cursor.run(NAME)
            yield from cursor.take(">")
            cursor.add_arguments(f"{', ' if count else '{'}{json.dumps(key, ensure_ascii=False)}: ")
            types = types_of(properties.get(key), schema)
            if not (yield from _read_value(cursor, types)):
                cursor.end()  # it is cut off
                return
            yield from cursor.run()
            count += 1
        has_ended = yield from cursor.take(FUNCTION_END)
        rest = cursor.text[cursor.at :]
        if has_ended or not any(tag.startswith(rest) for tag in (PARAMETER, FUNCTION_END)):
            cursor.add_arguments("}" if count else "{}")  # else, it is cut off
        cursor.end()

    def grammar(self, functions: Schemas, parallel: bool, tag: Tag) -> tuple[list[str], Schemas]:
        alternatives = " | ".join(f"call{i}" for i in range(len(functions)))
        rules = [f"calls: call{' (' + quoted(chr(10)) + ' call)*' if parallel else ''}", f"call: {alternatives}"]
        parts: dict[str, Any] = {}
        for i, (name, schema) in enumerate(functions.items()):
            arguments, properties = "", properties_of(name, schema, NAME)
            for j, (key, inner, is_required) in enumerate(properties):
                arguments += f" a{i}_{j}{'' if is_required else '?'}"
                begin = quoted(f"{PARAMETER}{key}>\n")
                if types_of(inner, inner) == {"string"}:
                    rules.append(f"a{i}_{j}: {begin} t{i}_{j} {quoted(chr(10))}")
                    rules.append(f"t{i}_{j}[lazy]: T{i}_{j}")
                    rules.append(f"T{i}_{j}: {_text(inner, f'the parameters of {name!r}: {key}')}")
                else:
                    parts[f"v{i}_{j}"] = inner
                    rules.append(f"a{i}_{j}: {begin} @v{i}_{j} {quoted(f'{chr(10)}{PARAMETER_END}{chr(10)}')}")
            begin, end = quoted(f"\n{FUNCTION}{name}>\n"), quoted(f"{FUNCTION_END}\n")
            rules.append(f"call{i}: {tag(CALL)} {begin}{arguments} {end} {tag(CALL_END)}")
        return rules, parts


def _text(schema: dict[str, Any], where: str) -> str:
    """A terminal for plain text and the tag behind it. ValueError for what cannot be demanded of it."""
    end = re.escape(f"\n{PARAMETER_END}").replace("/", r"\/").replace("\n", "n")
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        if schema.keys() <= PLAIN | {"enum", "const"} and not any(PARAMETER_END in value for value in values):
            return " | ".join(quoted(f"{value}\n{PARAMETER_END}") for value in values)
    if others := sorted(schema.keys() - PLAIN):
        raise ValueError(f"{where}: {others[0]}: cannot be demanded in this model's tool-call format")
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    inner = PARAMETER_END.replace("/", r"\/")
    return rf"/(?s:.{{{least},{most}}}){end}/ & ~/(?s:.*{inner}.+)/"


def _read_value(cursor: Cursor, types: set[str] | None) -> Reads[bool]:
    """Hand on a value as JSON; text as it comes, and another one once it is whole. False if it is cut off."""
    yield from cursor.take("\n")
    if types == {"string"}:
        cursor.add_arguments('"')
        newline = ""

        def add(text: str) -> None:
            nonlocal newline
            text = newline + text
            newline = "\n" if text.endswith("\n") else ""
            cursor.add_arguments(json.dumps(text.removesuffix("\n"), ensure_ascii=False)[1:-1])

        tag = yield from cursor.until((PARAMETER_END,), add)
        if tag:
            cursor.add_arguments('"')
        return bool(tag)
    pieces: list[str] = []
    if not (yield from cursor.until((PARAMETER_END,), pieces.append)):
        return False
    cursor.add_arguments(as_json("".join(pieces).removesuffix("\n"), types))
    return True


def as_json(text: str, types: set[str] | None) -> str:
    """A value as JSON of one of `types`, as it is written if it is that already; else, it is a text."""
    for made in (text.strip(), _from_python(text.strip())):
        if (found := type_of(made)) and (types is None or found & types):
            return made
    return json.dumps(text, ensure_ascii=False)


def _from_python(text: str) -> str:
    """A literal of Python as JSON; empty if it is none."""
    cursor, pieces = Cursor(), list[str]()
    cursor.text, cursor.is_last = text, True
    add: Callable[[str], None] = pieces.append
    try:
        for _ in read_literal(cursor, add):
            pass
    except BrokenError:
        return ""
    return "".join(pieces) if cursor.at == len(text) else ""
