"""The grammar of tool calls, in the format that requests/tool_calls.py describes."""

import json
from typing import Any

from nanoinfer.grammars.json_keywords import keyword_hint
from nanoinfer.grammars.json_schemas import prepared_schema
from nanoinfer.grammars.json_sizes import check_sizes
from nanoinfer.requests.tool_calls import BEGIN, END

NEW_LINE = "\n"
MAX_FUNCTIONS = 1000  # as many as names in a schema


def calls_grammar(text: str, json_options: dict[str, Any]) -> str:
    """What llguidance compiles for `text`: [{name of a function: JSON schema of its arguments}, whether there may be
    several calls]. ValueError naming the function whose schema cannot be compiled exactly.

    `json_options`: llguidance's for how JSON is written. Here, as models write calls, there are spaces between its parts.
    """
    functions, parallel = json.loads(text)
    if len(functions) > MAX_FUNCTIONS:
        raise ValueError(f"has {len(functions)} functions: must not exceed {MAX_FUNCTIONS}")
    options = {**json_options, "item_separator": ", ", "key_separator": ": "}
    one_of_all = " | ".join(f"f{i}" for i in range(len(functions)))
    rules = [
        'start: call ("\\n" call)*' if parallel else "start: call",
        f"call: {_quoted(BEGIN + NEW_LINE)} ({one_of_all}) {_quoted(NEW_LINE + END)}",
    ]
    schemas = []
    for i, (name, schema) in enumerate(functions.items()):
        begin = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '
        rules.append(f"f{i}: {_quoted(begin)} @a{i} {_quoted('}')}")
        schemas.append(_prepared(name, schema))
    check_sizes(schemas)
    parts = [{"name": f"a{i}", "json_schema": {**schema, "x-guidance": options}} for i, schema in enumerate(schemas)]
    return json.dumps({"grammars": [{"lark_grammar": "\n".join(rules)}, *parts]})


def _prepared(name: str, schema: Any) -> dict[str, Any]:
    try:
        return prepared_schema(json.dumps(schema))
    except ValueError as error:
        raise ValueError(f"the parameters of {name!r}: {error}{keyword_hint(json.dumps(schema))}") from error


def _quoted(text: str) -> str:
    """As a Lark grammar has it."""
    return json.dumps(text)
