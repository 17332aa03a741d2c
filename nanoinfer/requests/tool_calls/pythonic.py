"""Calls written as in Python: of Llama 3.2 and 4, LFM2 and Gemma 3. Their arguments become JSON, value by value."""

import ast
import json
import re
from collections.abc import Callable, Sequence

from nanoinfer.requests.tool_calls.arguments import properties_of
from nanoinfer.requests.tool_calls.call_format import CallFormat, Schemas, Tag, quoted
from nanoinfer.requests.tool_calls.cursor import Cursor, NotACall, Reads
from nanoinfer.requests.tool_calls.json_text import SCALAR, WORD, BrokenError, read_calls

NAME = re.compile(r"[\w.\-]*")
WORDS = {"True": "true", "False": "false", "None": "null"}
CLOSING = {"{": "}", "[": "]", "(": ")"}
IN_STRING = {quote: re.compile(rf"[^\\{quote}]*") for quote in "'\""}


class Pythonic(CallFormat):
    """`[f(a=1), g(b="x")]`, at the beginning of a reply or behind a tag"""

    name = "pythonic"
    begins: Sequence[str] = ("<|python_start|>", "<|tool_call_start|>")
    ends: Sequence[str] = ("<|python_end|>", "<|tool_call_end|>")
    bare = "["
    around = ("[", "]")

    def is_in(self, template: str) -> bool:
        return "[func_name1(" in template or "<|tool_call_start|>" in template

    def read_calls(self, cursor: Cursor, tag: str) -> Reads[None]:
        yield from cursor.run()
        if not (yield from cursor.take("[")):
            raise NotACall
        while True:
            yield from read_function(cursor)
            yield from cursor.run()
            if not (yield from cursor.take(",")):
                break
        yield from cursor.take("]")

    def grammar(self, functions: Schemas, parallel: bool, tag: Tag) -> tuple[list[str], Schemas]:
        before, behind = map(quoted, self.around)
        alternatives = " | ".join(f"call{i}" for i in range(len(functions)))
        more = ' (", " call)*' if parallel else ""
        rules, parts = [f"calls: {before} call{more} {behind}", f"call: {alternatives}"], {}
        for i, (name, schema) in enumerate(functions.items()):
            properties = properties_of(name, schema, NAME)
            rules.append(f'call{i}: {quoted(f"{name}(")} first{i}_0 ")"')
            for j, (key, inner, is_required) in enumerate(properties):
                value, rest = f"{quoted(f'{key}=')} @a{i}_{j}", f"more{i}_{j + 1}"
                others = "" if is_required else f" | first{i}_{j + 1}"
                mark = "" if is_required else "?"
                rules.append(f"first{i}_{j}: {value} {rest}{others}")
                rules.append(f'more{i}_{j}: (", " {value}){mark} {rest}')
                parts[f"a{i}_{j}"] = inner
            rules += [f'{each}{i}_{len(properties)}: ""' for each in ("first", "more")]
        return rules, parts


class Gemma(Pythonic):
    """Blocks of code: `f(a=1)` in ```` ```tool_code ````, or a JSON object in ```` ```json ````; or as Pythonic"""

    name = "gemma3"
    begins, ends = ("```tool_code", "```json"), ("```",)
    around = ("```tool_code\n", "\n```")

    def is_in(self, template: str) -> bool:
        return "tool_code" in template

    def read_calls(self, cursor: Cursor, tag: str) -> Reads[None]:
        if tag == "```json":
            yield from read_calls(cursor, strict=True)
            return
        yield from cursor.run()
        if (yield from cursor.peek()) == "[":
            yield from super().read_calls(cursor, tag)
            return
        while (yield from cursor.peek()) not in ("`", ""):
            is_printed = yield from cursor.take("print(")
            yield from read_function(cursor)
            if is_printed:
                yield from cursor.take(")")
            yield from cursor.run()

    def grammar(self, functions: Schemas, parallel: bool, tag: Tag) -> tuple[list[str], Schemas]:
        rules, parts = super().grammar(functions, parallel, tag)
        return [rules[0].replace('", "', '"\\n"'), *rules[1:]], parts


def read_function(cursor: Cursor) -> Reads[None]:
    """Read `f(a=1, b="x")`. NotACall where it is none."""
    yield from cursor.run()
    name = yield from cursor.run(NAME)
    if not name or not (yield from cursor.take("(")):
        raise NotACall
    before = cursor.calls
    try:
        while True:
            yield from cursor.run()
            if (yield from cursor.take(")")):
                break
            if cursor.calls > before and not (yield from cursor.take(",")):
                raise BrokenError
            yield from cursor.run()
            if (yield from cursor.take(")")):
                break
            key = yield from cursor.run(NAME)
            yield from cursor.run()
            if not key or not (yield from cursor.take("=")):
                raise BrokenError
            first = cursor.calls == before
            if first:
                cursor.begin(name, must_be_known=True)
            cursor.add_arguments(f"{'{' if first else ', '}{json.dumps(key, ensure_ascii=False)}: ")
            yield from read_literal(cursor, cursor.add_arguments)
    except BrokenError:
        if cursor.calls == before:
            raise NotACall from None
        cursor.end()  # as far as it goes
        return
    if cursor.calls == before:
        cursor.begin(name, must_be_known=True)
        cursor.add_arguments("{")
    cursor.add_arguments("}")
    cursor.end()


def read_literal(cursor: Cursor, add: Callable[[str], None]) -> Reads[None]:
    """Hand on a value that is written as in Python, as JSON, token by token. BrokenError if it is none."""
    closing, before, may_be_key = list[str](), "", False
    while True:
        yield from cursor.run()
        character = yield from cursor.peek()
        if closing and character == closing[-1]:
            cursor.at += 1
            closing.pop()
            add("}" if character == "}" else "]")
            before = ""
        elif closing and character in (",", ":"):
            cursor.at += 1
            before, may_be_key = f"{character} ", character == "," and closing[-1] == "}"
            continue
        elif character in CLOSING:
            cursor.at += 1
            add(before + ("{" if character == "{" else "["))
            closing.append(CLOSING[character])
            before, may_be_key = "", character == "{"
            continue
        else:
            token = yield from (_string(cursor) if character in IN_STRING else _word(cursor))
            add(before + (json.dumps(token) if may_be_key and not token.startswith('"') else token))
            before, may_be_key = "", False
        if not closing:
            return


def _string(cursor: Cursor) -> Reads[str]:
    """A string, as JSON."""
    quote = yield from cursor.peek()
    ending = (yield from cursor.take_any((quote * 3, quote))) or quote
    body = ""
    while not (yield from cursor.take(ending)):
        piece = yield from cursor.run(IN_STRING[quote])
        piece = piece or (yield from cursor.next())
        if piece == "\\":
            piece += yield from cursor.next()
        if not piece:
            raise BrokenError
        body += piece.replace("\n", "\\n").replace("\r", "\\r")
    try:
        value = ast.literal_eval(f"{ending}{body}{ending}")
    except (ValueError, SyntaxError):
        raise BrokenError from None
    try:
        value.encode()
    except UnicodeError:  # written as two halves
        return json.dumps(value)
    return json.dumps(value, ensure_ascii=False)


def _word(cursor: Cursor) -> Reads[str]:
    """A number, as it is written if JSON knows it, or a constant, as JSON."""
    begin = cursor.at
    word = yield from cursor.run(SCALAR)
    if WORD.fullmatch(word) or word in WORDS:
        return WORDS.get(word, word)
    cursor.at = begin
    raise BrokenError
