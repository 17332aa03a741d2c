"""The fields of SamplingParams that are grammars: their checks, and each as text."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

GRAMMAR_FIELDS = ("regex", "json_schema", "grammar", "choice", "tool_calls")  # at most one of them


def grammar_texts(params: Any) -> list[tuple[str, str | None]]:
    """The name of each field of GRAMMAR_FIELDS of these SamplingParams, with its value as text; at most one is not None."""
    choice = None if params.choice is None else json.dumps(params.choice)
    schema = params.json_schema if isinstance(params.json_schema, str | None) else json.dumps(params.json_schema)
    calls = None if params.tool_calls is None else json.dumps([params.tool_calls, params.parallel_tool_calls])
    texts = (params.regex, schema, params.grammar, choice, calls)
    return list(zip(GRAMMAR_FIELDS, texts, strict=True))


def check_grammars(params: Any) -> None:
    """ValueError naming the field when the grammar of these SamplingParams has a wrong type, or there are several. Whether
    it can be compiled is found out when the request arrives."""
    given = [name for name in GRAMMAR_FIELDS if getattr(params, name) is not None]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)}: at most one of {', '.join(GRAMMAR_FIELDS)} can be given")
    for name in ("regex", "grammar"):
        value = getattr(params, name)
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{name}={value!r}: must be a string")
    choice: Any = params.choice
    if choice is not None:
        is_list = isinstance(choice, Sequence) and not isinstance(choice, str)
        if not is_list or not choice or not all(isinstance(text, str) and text for text in choice):
            raise ValueError(f"choice={choice!r}: must be a list of at least one string, and none may be empty")
    schema: Any = params.json_schema
    if schema is not None and not isinstance(schema, str):
        if not isinstance(schema, Mapping):
            hint = "; use json_schema=Model.model_json_schema()" if hasattr(schema, "model_json_schema") else ""
            raise ValueError(f"json_schema={schema!r}: must be a dict or its text{hint}")
        _check_json("json_schema", schema)
    calls: Any = params.tool_calls
    if calls is not None:
        if not isinstance(calls, Mapping) or not calls or not all(isinstance(name, str) and name for name in calls):
            raise ValueError(
                f"tool_calls={calls!r}: must map the name of each function to a JSON schema of its arguments, and there "
                "must be at least one"
            )
        _check_json("tool_calls", dict(calls))
    elif params.min_new_tokens and not params.parallel_tool_calls:
        raise ValueError(
            f"min_new_tokens={params.min_new_tokens}: must be 0 with parallel_tool_calls=False: the first call is the end"
        )


def _check_json(name: str, value: Any) -> None:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{name}: cannot be written as JSON: {error}") from error
