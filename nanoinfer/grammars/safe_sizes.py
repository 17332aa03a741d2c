"""How deep and how large a grammar is: whether it is surely safe to compile in this process.

llguidance compiles by recursion, over brackets and from name to name (`$ref`, rules, terminals), with ten kilobytes of
stack for each level at most. So a long chain of names overflows any stack, which ends the process. And it compares patterns
that may meet with each other, which may take any time. The numbers below are bounds that are quick to find, and a grammar
within them takes a quarter of a Making's stack, and a second. Any other is tried in a process of its own (trial.py).

What is said of depth here was measured with llguidance 1.9, as the least stack that chains of 1,000 levels need: objects
9.1 KiB a level, prefixItems 9.7, each object with properties of all kinds 10.1, lists 7.9, anyOf 8.1, allOf 6.4, nesting
without names 5.9, rules 3.2 (5.0 with brackets), terminals 2.5; nothing else grows.
"""

import json
from collections.abc import Iterator
from typing import Any

from nanoinfer.grammars.grammar import Grammar
from nanoinfer.grammars.json_sizes import levels
from nanoinfer.grammars.lark import as_lark, split_json

SAFE_LEVELS = 1_500
SAFE_LENGTH = 20_000  # characters
SAFE_PATTERNS = 8  # in a schema in which they may meet
PATTERNS = ("pattern", "format", "propertyNames", "minLength", "maxLength", "multipleOf")
MERGED = ("allOf", "anyOf", "oneOf", "$ref")  # beside another keyword, they make the compiler put schemas together


def is_safe(grammar: Grammar) -> bool:
    """Whether a grammar, of which the rest of its checks is done, is within the bounds."""
    if grammar.kind in ("regex", "choice"):
        return True  # by their own limits: nothing in them is deep, and they take a tenth of a second
    if len(grammar.text) > SAFE_LENGTH or grammar.text.count("(?=") > SAFE_PATTERNS:  # each becomes a pattern
        return False
    if grammar.kind == "grammar":
        lark, texts = split_json(as_lark(grammar.text))
        if _num_names(lark) > SAFE_LEVELS:
            return False
        schemas = list(map(json.loads, texts))
    else:
        given = json.loads(grammar.text)
        schemas = list(given[0].values()) if grammar.kind == "tool_calls" else [given]
    return all(_deepest(schema) <= SAFE_LEVELS for schema in schemas) and (
        not any(map(_meet, schemas)) or sum(map(_num_patterns, schemas)) <= SAFE_PATTERNS
    )


def _objects(schema: Any) -> Iterator[dict[str, Any]]:
    return (part for level in levels([schema]) for part in level if isinstance(part, dict))


def _deepest(schema: Any) -> int:
    """How deep the compiler may go: through the whole depth of the schema, and again from every target of a `$ref`. It
    does not enter a target again in which it is already."""
    targets = {part["$ref"] for part in _objects(schema) if isinstance(part.get("$ref"), str)}
    return (len(targets) + 1) * sum(1 for _ in levels([schema]))


def _meet(schema: Any) -> bool:
    """Whether patterns of the schema may meet each other: several may be asked of one string, or of one key."""
    return any(
        "patternProperties" in part or "allOf" in part or (len(part) > 1 and any(keyword in part for keyword in MERGED))
        for part in _objects(schema)
    )


def _num_patterns(schema: Any) -> int:
    return sum(
        sum(keyword in part for keyword in PATTERNS) + len(part.get("patternProperties", ()))
        for part in _objects(schema)
    )


def _num_names(lark: str) -> int:
    """At least as many as there are rules, terminals and brackets: the compiler enters none of them while it is in it."""
    return lark.count(":") + sum(map(lark.count, "([{"))
