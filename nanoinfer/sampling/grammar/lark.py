"""Lark grammars: as requests give them, with JSON schemas inside or in llama.cpp's notation (GBNF), and that of tool calls.

The expressions below look at each character of a text once or twice, since no other thread runs meanwhile: nothing that was
taken is given back (`*+`).
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from nanoinfer.requests.tool_calls.call_format import CallFormat
from nanoinfer.sampling.grammar.json_schemas import prepared_schema

_GBNF_RULE = re.compile(r"^[ \t]*+[\w-]++[ \t]*+::=", re.MULTILINE)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)
_CLASS = re.compile(r"\[(?:[^\]\\\n]|\\.)*+")
# A string, a regular expression or a comment is taken whole, so that no %json in it counts.
_PART = re.compile(r'"(?:[^"\\\n]|\\.)*+"?|/(?:[^/\\\n]|\\.)++/?|(?://|#)[^\n]*+|%json\s*+')
_SEPARATORS = {"item_separator": (",", ", "), "key_separator": (":", ": ")}  # that guidance's x-guidance may ask for


def as_lark(text: str) -> str:
    """A grammar in Lark's notation, given in it or in GBNF. ValueError when it cannot be read."""
    if not _GBNF_RULE.search(text):
        return text
    from llguidance.gbnf_to_lark import gbnf_to_lark

    for found in _CLASS.findall(text):
        if any(operator in found for operator in ("&&", "--", "~~")):  # of regular expressions, but not of GBNF
            raise ValueError(f"{found[:60]!r}: && and -- and ~~ must not stand in brackets")
    try:
        return str(gbnf_to_lark(_ESCAPE.sub(_short_escape, text)))
    except Exception as error:  # the converter has a class of its own for some, and none for others
        raise ValueError(f"cannot be read as GBNF: {error}") from error


def _short_escape(match: re.Match[str]) -> str:
    """An escape as llguidance knows it: \\u0041 is \\x41."""
    if (digits := match[1] or match[2]) is None:
        return match[0]
    return f"\\x{code:02x}" if (code := int(digits, 16)) < 0x100 else chr(code)


def split_json(lark: str) -> tuple[str, list[str]]:
    """A Lark grammar in which `@json0`, `@json1`, ... stand for each `%json {...}`, and these schemas. ValueError when one
    is no JSON."""
    kept, schemas, at = list[str](), list[str](), 0
    while match := _PART.search(lark, at):
        end = match.end()
        if not match[0].startswith("%json"):
            kept.append(lark[at:end])
            at = end
            continue
        try:
            _, end = json.JSONDecoder().raw_decode(lark, end)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"%json: what follows is not JSON: {error}") from error
        kept += [lark[at : match.start()], f"@json{len(schemas)} "]
        schemas.append(lark[match.end() : end])
        at = end
    return "".join(kept) + lark[at:], schemas


def lark_grammar(text: str, json_options: dict[str, Any]) -> str:
    """What llguidance compiles for a grammar in Lark's notation or in GBNF. ValueError when it has a part that cannot be
    compiled exactly. `json_options`: llguidance's for how JSON is written."""
    lark, schemas = split_json(as_lark(text))
    for directive in ("%lark", "%regex", "%json"):  # those of its schemas are in their places no more
        if directive in lark:
            raise ValueError(f"{directive} is not implemented in a Lark grammar, unless %json begins a schema")
    parts = [_asked_part(f"json{i}", json.loads(schema), json_options) for i, schema in enumerate(schemas)]
    return json.dumps({"grammars": [{"lark_grammar": lark}, *parts]})  # even if it looks like anything else


def _asked_part(name: str, schema: Any, options: dict[str, Any]) -> dict[str, Any]:
    """A schema as another grammar. Of `x-guidance`, it is the separators that say what the output must be."""
    asked = schema.pop("x-guidance", None) if isinstance(schema, dict) else None
    if isinstance(asked, dict):
        for key, known in _SEPARATORS.items():
            if asked.get(key, known[0]) not in known:
                raise ValueError(f"%json: x-guidance.{key}={asked[key]!r}: must be one of {known}")
            options = {**options, key: asked.get(key, known[0])}
    return _json_part(name, "%json", schema, options)


def _json_part(name: str, where: str, schema: Any, options: dict[str, Any]) -> dict[str, Any]:
    try:
        prepared = prepared_schema(json.dumps(schema))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    return {"name": name, "json_schema": {**prepared, "x-guidance": options}}


def calls_grammar(text: str, call_format: CallFormat, tag: Callable[[str], str], json_options: dict[str, Any]) -> str:
    """What llguidance compiles for `text`: [{name of a function: JSON schema of its arguments}, whether there may be
    several calls]. ValueError naming the function whose schema cannot be compiled exactly. `tag` writes a tag.

    `json_options`: llguidance's for how JSON is written. Here, as models write calls, there are spaces between its parts.
    """
    functions, parallel = json.loads(text)
    options = {**json_options, "item_separator": ", ", "key_separator": ": "}
    rules, schemas = call_format.grammar(functions, parallel, tag)
    parts = [_json_part(name, _function_of(name, functions), schema, options) for name, schema in schemas.items()]
    return json.dumps({"grammars": [{"lark_grammar": "\n".join(["start: calls", *rules])}, *parts]})


def either(thought: str, rules: list[str], before: str, text: str, calls: str | None) -> str:
    """What llguidance compiles for `thought` and then `before` and the grammar `text`, or `calls`; `rules` are of the
    thought."""
    parts: list[dict[str, Any]] = []
    for name, each in (("body", text), ("calls", calls)):
        if each is not None:
            made = json.loads(each)["grammars"] if each.startswith("{") else [{"lark_grammar": each}]
            parts += [{**made[0], "name": name}, *made[1:]]
    body = f"{before} @body" if calls is None else f"({before} @body | @calls)"
    return json.dumps({"grammars": [{"lark_grammar": "\n".join([f"start: {thought} {body}", *rules])}, *parts]})


def _function_of(part: str, functions: Mapping[str, Any]) -> str:
    number = re.match(r"[a-z]+(\d+)", part)
    assert number is not None, "a format numbers the functions"
    return f"the parameters of {list(functions)[int(number[1])]!r}"
