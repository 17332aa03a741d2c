"""The calls of Qwen3-Coder and Qwen3.5: tags for the function and for each argument, whose values are plain text."""

import json
import re
from typing import Any

from nanoinfer.requests.tool_calls.arguments import ANNOTATIONS, check_keys, properties_of, type_of, types_of
from nanoinfer.requests.tool_calls.call_format import CallFormat, Schemas, Tag, quoted
from nanoinfer.requests.tool_calls.cursor import Cursor, NotACall, Reads
from nanoinfer.requests.tool_calls.values import value_in

CALL, CALL_END, FUNCTION, FUNCTION_END = "<tool_call>", "</tool_call>", "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
VALUE_ENDS = (PARAMETER_END, f"{FUNCTION_END}\n{CALL_END}")  # some models leave the last tag of a value out
WORD = re.compile(r"[^<>\n]*")
PLAIN = ANNOTATIONS | {"type", "minLength", "maxLength"}  # what may be said of a text


class QwenXml(CallFormat):
    """`<tool_call><function=f><parameter=a>1</parameter></function></tool_call>`"""

    name = "qwen3_coder"
    marks = ((FUNCTION, PARAMETER),)
    begins, ends = (CALL, FUNCTION), (FUNCTION_END, CALL_END)
    call = f"{CALL}\n{FUNCTION}NAME>\nARGUMENTS{FUNCTION_END}\n{CALL_END}"

    def read_calls(self, cursor: Cursor, tag: str) -> Reads[None]:
        """A value becomes JSON by its schema: text if that allows only text, and else what it looks like."""
        yield from cursor.run()
        if tag == CALL and not (yield from cursor.take(FUNCTION)):
            raise NotACall
        name = yield from cursor.run(WORD)
        if not name or not (yield from cursor.take(">")):
            raise NotACall
        cursor.begin(name)
        schema, before, end = cursor.schemas.get(name), "{", PARAMETER_END
        properties = schema.get("properties", {}) if isinstance(schema, dict) else {}
        yield from cursor.run()
        while end == PARAMETER_END and (yield from cursor.take(PARAMETER)):
            key = yield from cursor.run(WORD)
            yield from cursor.take(">")
            cursor.add_arguments(f"{before}{json.dumps(key, ensure_ascii=False)}: ")
            before = ", "
            end = yield from _read_value(cursor, types_of(properties.get(key), schema))
            yield from cursor.run()
        if end == PARAMETER_END and not (yield from cursor.take(FUNCTION_END)):
            rest = cursor.text[cursor.at :]
            end = "" if any(tag.startswith(rest) for tag in (PARAMETER, FUNCTION_END)) else end
        if end:  # else, it is cut off
            cursor.add_arguments("{}" if before == "{" else "}")
        cursor.end()

    def arguments(self, i: int, name: str, schema: Any, tag: Tag) -> tuple[str, list[str], Schemas]:
        arguments, rules, parts = "", list[str](), {}
        for j, (key, inner, is_required) in enumerate(properties_of(name, schema, WORD)):
            arguments += f" a{i}_{j}{'' if is_required else '?'}"
            begin, newline = quoted(f"{PARAMETER}{key}>\n"), quoted("\n")
            if types_of(inner, inner) == {"string"}:
                rules.append(f"a{i}_{j}: {begin} t{i}_{j} {newline}")
                rules.append(f"t{i}_{j}[lazy]: T{i}_{j}")
                rules.append(f"T{i}_{j}: {_text(inner, f'the parameters of {name!r}: {key}')}")
            else:
                parts[f"v{i}_{j}"] = inner
                rules.append(f"a{i}_{j}: {begin} @v{i}_{j} {newline} {quoted(PARAMETER_END)} {newline}")
        return arguments, rules, parts


def _text(schema: dict[str, Any], where: str) -> str:
    """A terminal for plain text and the tag behind it. ValueError for what cannot be demanded of it."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else ())
    plain = values and not any(end in value for value in values for end in VALUE_ENDS)
    check_keys(schema, PLAIN | {"enum", "const"} if plain else PLAIN, where)
    if values:
        return " | ".join(quoted(f"{value}\n{PARAMETER_END}") for value in values)
    end, *others = (re.escape(each).replace("/", r"\/").replace("\n", "n") for each in VALUE_ENDS)
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    return rf"/(?s:.{{{least},{most}}}\n{end})/ & ~/(?s:.*{end}.+)/ & ~/(?s:.*{others[0]}.*)/"


def _read_value(cursor: Cursor, types: set[str] | None) -> Reads[str]:
    """Hand on a value as JSON; text as it comes, and another one once it is whole. Returns what ends it, empty if it is cut
    off."""
    yield from cursor.take("\n")
    if types == {"string"}:
        cursor.add_arguments('"')
        newline = ""

        def add(text: str) -> None:
            nonlocal newline
            text = newline + text
            newline = "\n" if text.endswith("\n") else ""
            cursor.add_arguments(json.dumps(text.removesuffix("\n"), ensure_ascii=False)[1:-1])

        end = yield from cursor.until(VALUE_ENDS, add)
        cursor.add_arguments('"' if end else "")
        return end
    pieces: list[str] = []
    if end := (yield from cursor.until(VALUE_ENDS, pieces.append)):
        cursor.add_arguments(as_json("".join(pieces).removesuffix("\n"), types))
    return end


def as_json(text: str, types: set[str] | None) -> str:
    """A value as JSON of one of `types`, as it is written if it is that already; else, it is a text."""
    for made in (text.strip(), value_in(text.strip())):
        if (found := type_of(made)) and (types is None or found in types):
            return made
    return json.dumps(text, ensure_ascii=False)
