"""Grammars at random that are deep, large or costly, up to ten times every limit."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from nanoinfer.grammars.compiler import MAX_CHOICES
from nanoinfer.grammars.patterns import MAX_REGEX

Schema = dict[str, Any]
LINKS: dict[str, Callable[[Any], Schema]] = {
    "required property": lambda to: {"type": "object", "properties": {"k": to}, "required": ["k"]},
    "property": lambda to: {"type": "object", "properties": {"k": to}, "additionalProperties": False},
    "items": lambda to: {"type": "array", "items": to},
    "prefixItems": lambda to: {"type": "array", "prefixItems": [to], "items": False, "minItems": 1},
    "anyOf": lambda to: {"anyOf": [to, {"type": "integer"}]},
    "allOf": lambda to: {"allOf": [to]},
    "sibling": lambda to: {**to, "type": "null"},
    "additional": lambda to: {"type": "object", "additionalProperties": to},
    "pattern": lambda to: {"type": "object", "patternProperties": {"^a$": to}, "additionalProperties": False},
}
RULES: dict[str, str] = {  # of a Lark grammar; {i} is a rule's number and {next} the one that it leads to
    "right": 'r{i}: "k{i}" r{next}',
    "left": 'r{i}: r{next} "k{i}"',
    "alone": "r{i}: r{next}",
    "either": 'r{i}: r{next} | "k{i}"',
    "optional": 'r{i}: (r{next} "k")?',
}


def chain_of_refs(link: str, length: int) -> str:
    """A JSON schema in which each of `length` definitions leads to the next."""
    refs = [{"$ref": f"#/$defs/r{i}"} for i in range(length + 1)]
    definitions = {f"r{i}": LINKS[link](refs[i + 1]) for i in range(length)}
    return json.dumps({"$defs": {**definitions, f"r{length}": {"type": "null"}}, "$ref": "#/$defs/r0"})


def chain_of_rules(rule: str, length: int) -> str:
    """A Lark grammar in which each of `length` rules leads to the next."""
    rules = [RULES[rule].format(i=i, next=i + 1) for i in range(length)]
    return "\n".join(["start: r0", *rules, f'r{length}: "z"'])


def large_grammar(rng: np.random.Generator) -> tuple[str, str]:
    """A kind of grammar, and its text."""

    def size(most: int) -> int:
        return int(10 ** rng.uniform(1, np.log10(most)))

    def one(*choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    def patterns(most: int) -> list[str]:
        return [
            one(f"^k{i}x", f"[a-z]{i}", f"a.{{{i % 50}}}b{i}", f"(ab|c){{{i % 20}}}{i}$") for i in range(size(most))
        ]

    def refs() -> tuple[str, str]:
        return "json_schema", chain_of_refs(one(*LINKS), size(15_000))

    def calls() -> tuple[str, str]:
        schemas = {f"f{i}": json.loads(chain_of_refs(one(*LINKS), size(500))) for i in range(size(30))}
        return "tool_calls", json.dumps([schemas, True])

    def rules() -> tuple[str, str]:
        return "grammar", chain_of_rules(one(*RULES), size(30_000))

    def doubled() -> tuple[str, str]:
        rules = [f"r{i}: r{i + 1} r{i + 1}" for i in range(size(100))]
        return "grammar", "\n".join(["start: r0", *rules, f'r{len(rules)}: "z"'])

    def pattern_properties() -> tuple[str, str]:
        return "json_schema", json.dumps(
            {"type": "object", "patternProperties": {each: {} for each in patterns(1_000)}}
        )

    def all_patterns() -> tuple[str, str]:
        return "json_schema", json.dumps({"type": "string", "allOf": [{"pattern": each} for each in patterns(200)]})

    def alternatives() -> tuple[str, str]:
        groups = [
            [{"properties": {f"k{i}{j}": {}}, "required": [f"k{i}{j}"]} for j in range(2)] for i in range(size(30))
        ]
        return "json_schema", json.dumps({"type": "object", "allOf": [{"anyOf": each} for each in groups]})

    def properties() -> tuple[str, str]:
        names = [f"key{i}" for i in range(size(10_000))]
        return "json_schema", json.dumps(
            {"type": "object", "properties": {name: {} for name in names}, "required": names[::2]}
        )

    def cross() -> tuple[str, str]:
        all_refs = {f"k{j}": {"$ref": f"#/$defs/r{j}"} for j in range(size(200))}
        definitions = {f"r{i}": {"type": "object", "properties": all_refs} for i in range(len(all_refs))}
        return "json_schema", json.dumps({"$defs": definitions, "$ref": "#/$defs/r0"})

    def nested() -> tuple[str, str]:
        begin, end = one(('{"items":', "}"), ('{"anyOf":[{"type":"null"},', "]}"), ('{"allOf":[', "]}"))
        depth = size(1_000)
        return "json_schema", begin * depth + "{}" + end * depth

    def enum() -> tuple[str, str]:
        return "json_schema", json.dumps({"enum": [f"value {i}" for i in range(size(50_000))]})

    def choice() -> tuple[str, str]:
        return "choice", json.dumps([f"option {i}" for i in range(size(10 * MAX_CHOICES))])

    def regex() -> tuple[str, str]:
        part = one("(ab|c)?", "[a-z]*x", "(?:a|b){9}", "a.{50}b|", "((((a)*)*)*)*", "\\w+")
        return "regex", (part * size(10 * MAX_REGEX))[: size(10 * MAX_REGEX)]

    def brackets() -> tuple[str, str]:
        depth = size(1_000)
        return one(
            ("regex", "(" * depth + "a" + ")" * depth), ("grammar", "start: " + "(" * depth + '"a"' + ")?" * depth)
        )

    makers: list[Callable[[], tuple[str, str]]] = [
        *(refs, refs, calls, rules, rules, doubled, pattern_properties, all_patterns, alternatives, properties),
        *(cross, nested, enum, choice, regex, brackets),
    ]
    made: tuple[str, str] = one(*makers)()
    return made
