"""Reads JSON while it is written: values as they stand, and calls that are objects with a name and arguments."""

import json
import re
from collections.abc import Callable, Sequence

from nanoinfer.requests.tool_calls.cursor import Cursor, NotACall, Reads

ARGUMENTS = ("arguments", "parameters")  # the names under which models write them
CLOSING = {"{": "}", "[": "]"}
IN_STRING = re.compile(r'(?:[^"\\]+|\\.)*', re.DOTALL)
SCALAR = re.compile(r"[-+.0-9A-Za-z]*")
WORD = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null")
CONTROL = re.compile(r"[\x00-\x1f]")


class BrokenError(Exception):
    """What follows is not JSON, or ends too early."""


def read_value(cursor: Cursor, add: Callable[[str], None]) -> Reads[None]:
    """Hand on one value as it is written, piece by piece, so no number is rounded; only control characters in strings
    become what JSON allows. BrokenError, where brackets do not match or another character stands."""
    open_brackets: list[str] = []
    while True:
        space = yield from cursor.run()
        if open_brackets:
            add(space)
        character = yield from cursor.peek()
        if character == '"':
            yield from _read_string(cursor, add)
        elif open_brackets and character in (",", ":", open_brackets[-1]):
            cursor.at += 1
            add(character)
            if character == open_brackets[-1]:
                open_brackets.pop()
        elif character in CLOSING:
            cursor.at += 1
            add(character)
            open_brackets.append(CLOSING[character])
        else:
            begin, word = cursor.at, (yield from cursor.run(SCALAR))
            if not WORD.fullmatch(word):
                cursor.at = begin
                raise BrokenError
            add(word)
        if not open_brackets:
            return


def _read_string(cursor: Cursor, add: Callable[[str], None]) -> Reads[None]:
    """Hand on a string, of which the next character is the first quote."""
    add((yield from cursor.next()))
    while (yield from cursor.peek()) != '"':
        found = IN_STRING.match(cursor.text, cursor.at)  # as far as it is there
        assert found is not None, "it may be empty"
        cursor.at = found.end()
        add(escaped(found[0]))
        if not found[0] and not (yield from cursor.more()):
            raise BrokenError
    add((yield from cursor.next()))


def escaped(text: str) -> str:
    """Text within a string, with its control characters as JSON demands it."""
    return CONTROL.sub(lambda character: json.dumps(character[0])[1:-1], text)


def read_whole(cursor: Cursor) -> Reads[str]:
    """One value, once it is whole. NotACall if it is none."""
    pieces: list[str] = []
    try:
        yield from read_value(cursor, pieces.append)
    except BrokenError:
        raise NotACall from None
    return "".join(pieces)


def read_string(cursor: Cursor) -> Reads[str]:
    """What a string says, once it is whole. NotACall if there is none."""
    if (yield from cursor.peek()) != '"':
        raise NotACall
    return _string((yield from read_whole(cursor)))


def read_arguments(cursor: Cursor, ends: Sequence[str] = ()) -> Reads[None]:
    """Hand on the arguments of the call that has begun. What is no JSON is handed on as it is, up to one of `ends`."""
    try:
        yield from read_value(cursor, cursor.add_arguments)
    except BrokenError:
        yield from cursor.until(ends, cursor.add_arguments)


def read_calls(cursor: Cursor, ends: Sequence[str] = (), strict: bool = False) -> Reads[None]:
    """Read a list of calls, or one. Arguments as in `read_call`."""
    yield from cursor.run()
    is_list = yield from cursor.take("[")
    while True:
        yield from read_call(cursor, ends, strict)
        yield from cursor.run()
        if not is_list or not (yield from cursor.take(",")):
            break
    if is_list:
        yield from cursor.take("]")


def read_call(cursor: Cursor, ends: Sequence[str] = (), strict: bool = False) -> Reads[None]:
    """Read a call that is an object with `name` and `arguments` (or `parameters`), in any order, and other members that
    mean nothing. NotACall where it is none. `ends`: see `read_arguments`. `strict`: it must have arguments, and call a
    function that is known: without a tag, any object might come."""
    before, name, held = cursor.calls, "", ""
    yield from cursor.run()
    if not (yield from cursor.take("{")):
        raise NotACall
    try:
        while not (yield from _is_at_end(cursor)):
            key = yield from read_string(cursor)
            yield from cursor.run()
            if not (yield from cursor.take(":")):
                raise NotACall
            yield from cursor.run()
            if key == "name" and not name:
                name = yield from read_string(cursor)
            elif key not in ARGUMENTS or held or cursor.calls > before:
                yield from read_whole(cursor)
            elif name and (yield from cursor.peek()) == "{":
                cursor.begin(name, strict)
                yield from read_arguments(cursor, ends)
            else:
                held = _as_object((yield from read_whole(cursor)))
            if held and name and cursor.calls == before:
                cursor.begin(name, strict)
                cursor.add_arguments(held)
    except NotACall:
        if cursor.calls == before:
            raise
    if cursor.calls == before:
        if not name or strict:
            raise NotACall
        cursor.begin(name)
        cursor.add_arguments("{}")
    cursor.end()


def _is_at_end(cursor: Cursor) -> Reads[bool]:
    """Whether an object ends here, and no other member comes."""
    yield from cursor.run()
    if (yield from cursor.take("}")):
        return True
    yield from cursor.take(",")
    yield from cursor.run()
    return False


def _string(written: str) -> str:
    try:
        value = json.loads(written)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, str):
        raise NotACall
    return value


def _as_object(written: str) -> str:
    """Arguments as an object, if they are the text of one, or null. NotACall if they are not."""
    if written.startswith('"'):
        written = _string(written).strip() or "null"
        try:
            json.loads(written, parse_int=float, strict=False)
        except (ValueError, RecursionError):
            raise NotACall from None
    if written == "null":
        return "{}"
    if not written.startswith("{"):
        raise NotACall
    return written
