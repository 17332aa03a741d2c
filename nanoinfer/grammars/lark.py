"""Lark grammars as requests give them: with JSON schemas inside, or in llama.cpp's notation (GBNF)."""

import json
import re
from typing import Any

from nanoinfer.grammars.json_keywords import keyword_hint
from nanoinfer.grammars.json_schemas import prepared_schema
from nanoinfer.grammars.json_sizes import check_sizes
from nanoinfer.grammars.limits import check_depth, check_lark

# As in limits.py, each of these looks at a character once or twice.
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

    check_depth(text)
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
    """What llguidance compiles for a grammar in Lark's notation or in GBNF. ValueError when it is too large, or has a part
    that cannot be compiled exactly. `json_options`: llguidance's for how JSON is written."""
    lark, schemas = split_json(as_lark(text))
    check_lark(lark)
    parts = [_json_part(f"json{i}", schema, json_options) for i, schema in enumerate(schemas)]
    check_sizes([part["json_schema"] for part in parts])
    return json.dumps({"grammars": [{"lark_grammar": lark}, *parts]})  # even if it looks like anything else


def _json_part(name: str, text: str, options: dict[str, Any]) -> dict[str, Any]:
    """A schema as another grammar. Of `x-guidance`, it is the separators that say what the output must be."""
    schema = json.loads(text)
    asked = schema.pop("x-guidance", None) if isinstance(schema, dict) else None
    if isinstance(asked, dict):
        for key, known in _SEPARATORS.items():
            if asked.get(key, known[0]) not in known:
                raise ValueError(f"%json: x-guidance.{key}={asked[key]!r}: must be one of {known}")
            options = {**options, key: asked.get(key, known[0])}
    try:
        prepared = prepared_schema(json.dumps(schema))
    except ValueError as error:
        raise ValueError(f"%json: {error}{keyword_hint(text)}") from error
    return {"name": name, "json_schema": {**prepared, "x-guidance": options}}
