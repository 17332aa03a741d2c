"""Reads values while they are written, as JSON or as literals of Python, and hands them on as JSON."""

import json
import re
from collections.abc import Callable, Sequence

from nanoinfer.requests.tool_calls.cursor import Cursor, NotACall, Reads

CLOSING = {"{": "}", "[": "]", "(": ")"}
IN_STRING = {quote: re.compile(rf"(?:[^\\{quote}]+|\\.)*", re.DOTALL) for quote in "\"'"}
SPECIAL = re.compile(r'\\.|["\x00-\x1f]', re.DOTALL)  # what a string may have that JSON writes in another way
COMMAS = re.compile(r"[\s,]*")  # between the parts of a call
SCALAR = re.compile(r"[-+.0-9A-Za-z]*")
NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?")
WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}


def read_value(cursor: Cursor, add: Callable[[str], None]) -> Reads[None]:
    """Hand on one value as it is written, piece by piece, so no number is rounded; what JSON writes in another way becomes
    JSON. NotACall, where brackets do not match or another character stands."""
    closing, before, may_be_key = list[str](), "", False  # `before`: what is between two values
    while True:
        space = yield from cursor.run()
        before += space if closing else ""
        character = yield from cursor.peek()
        if closing and character in (",", ":"):
            cursor.at += 1
            before, may_be_key = before + character, character == "," and closing[-1] == "}"
            continue
        if closing and character == closing[-1]:
            cursor.at += 1
            closing.pop()
            add(before.replace(",", "") + ("}" if character == "}" else "]"))
        else:
            add(before)
            if character in CLOSING:
                cursor.at += 1
                closing.append(CLOSING[character])
                add("{" if character == "{" else "[")
            elif character in IN_STRING:
                yield from _read_string(cursor, add)
            else:
                word = yield from _read_word(cursor)
                add(f'"{word}"' if may_be_key else word)
        before, may_be_key = "", character == "{"
        if not closing:
            return


def _read_string(cursor: Cursor, add: Callable[[str], None]) -> Reads[None]:
    """Hand on a string between quotes of any kind, of which the first comes next."""
    quote = yield from cursor.peek()
    end = yield from cursor.take_any((quote * 3, quote))
    add('"')
    while not (yield from cursor.take(end)):
        found = IN_STRING[quote].match(cursor.text, cursor.at)  # as far as it is there
        assert found is not None, "it may be empty"
        cursor.at = found.end()
        add(SPECIAL.sub(_as_json, found[0]))
        if found[0]:
            continue
        if (yield from cursor.take(quote)):  # one where three are the end
            add(SPECIAL.sub(_as_json, quote))
        elif not (yield from cursor.more()):
            raise NotACall
    add('"')


def _as_json(special: re.Match[str]) -> str:
    r"""A character or an escape, as JSON has it. Of those that only Python knows, `\'` and `\x` mean something here."""
    text = special[0]
    if text[0] == "\\" and text[1] in '"\\/bfnrtu':
        return text
    return {r"\'": "'", r"\x": r"\u00"}.get(text) or json.dumps(text)[1:-1]


def _read_word(cursor: Cursor) -> Reads[str]:
    """A number, as it is written, or a constant."""
    begin = cursor.at
    word = yield from cursor.run(SCALAR)
    if not NUMBER.fullmatch(word) and word not in WORDS:
        cursor.at = begin
        raise NotACall
    return WORDS.get(word, word)


def value_in(text: str) -> str:
    """A text that is one value, as JSON; empty if it is none."""
    cursor, pieces = Cursor(), list[str]()
    cursor.text, cursor.is_last = text, True
    try:
        for _ in read_value(cursor, pieces.append):
            pass
    except NotACall:
        return ""
    return "".join(pieces) if cursor.at == len(text) else ""


def read_whole(cursor: Cursor) -> Reads[str]:
    """One value, once it is whole. NotACall if it is none."""
    pieces: list[str] = []
    yield from read_value(cursor, pieces.append)
    return "".join(pieces)


def read_string(cursor: Cursor) -> Reads[str]:
    """What a string of JSON says, once it is whole. NotACall if there is none."""
    if (yield from cursor.peek()) != '"':
        raise NotACall
    return string_in((yield from read_whole(cursor)))


def string_in(written: str) -> str:
    """What the JSON text of a string says. NotACall if nothing can be."""
    try:
        return str(json.loads(written))
    except ValueError:
        raise NotACall from None


def read_arguments(cursor: Cursor, ends: Sequence[str] = ()) -> Reads[None]:
    """Hand on the arguments of the call that has begun. What is no JSON is handed on as it is, up to one of `ends`."""
    try:
        yield from read_value(cursor, cursor.add_arguments)
    except NotACall:
        yield from cursor.until(ends, cursor.add_arguments)
