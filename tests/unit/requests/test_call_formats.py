"""How each family of models writes calls: what is read of it, however the text is cut, and which template says so."""

import json
import random
from types import SimpleNamespace
from typing import Any

import pytest

from nanoinfer.requests.tool_calls.arguments import types_of
from nanoinfer.requests.tool_calls.cursor import Reasoning
from nanoinfer.requests.tool_calls.gptoss import CHANNELS
from nanoinfer.requests.tool_calls.registry import CALL_FORMATS, format_of, reasoning_of, renders_tools
from nanoinfer.requests.tool_calls.reply import ReplyParser
from tests.unit.requests.test_tool_calls import calls_of, read, text_of

FORMATS = {each.name: each for each in CALL_FORMATS}
SCHEMAS: dict[str, Any] = {
    "f": {
        "type": "object",
        "properties": {
            "s": {"type": "string"},
            "n": {"type": "number"},
            "i": {"type": "integer"},
            "b": {"type": "boolean"},
            "l": {"type": "array"},
            "o": {"$ref": "#/$defs/o"},
            "m": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "$defs": {"o": {"type": "object"}},
    },
    "g": {"type": "object"},
}
F, G = '{"s": "x"}', "{}"
TABS, ONE, SEP, ONE_END, ALL_END = (
    *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
    *("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
)
END, BEGIN = "<|end|>", "<|start|>assistant<|channel|>"


def xml(*parameters: tuple[str, str], name: str = "f") -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


BROKEN = ('{"s": ', '{"s": "x"', '{"i": ', "{NaN}")  # what the model has written wrongly, or not to its end
CASES: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    # format, text, content, calls
    ("hermes", 'One <tool_call>\n{"name": "f", "arguments": {"s": "x"}}\n</tool_call>', "One ", [("f", F)]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"s": "\\\n"}}</tool_call>', "", [("f", r'{"s": "\\\n"}')]),
    ("hermes", r'''<tool_call>{"name": "f", "arguments": {'b': True, "l": [1, None,], "s": "\d\x41"}}''', "",
     [("f", r'{"b": true, "l": [1, null], "s": "\\d\u0041"}')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"s": "x"}}}\n</tool_call> Done}', "Done}", [("f", F)]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"s": "x"}}}}\n{"name": "g"}', "", [("f", F), ("g", G)]),
    ("llama3_json", '{"name": "f", "parameters": {"s": "x"}}', "", [("f", F)]),
    ("llama3_json", '\n<|python_tag|>{"name": "f", "parameters": {"s": "x"}}', "\n", [("f", F)]),
    ("llama3_json", '{"type": "function", "name": "f", "parameters": {"s": "x"}}; {"name": "g", "parameters": {}}', "",
     [("f", F), ("g", G)]),
    ("hermes", '<tool_call>\n{"name": "f", "arguments": {"s": "x"}}\n{"name": "g", "arguments": {}}\n</tool_call>', "",
     [("f", F), ("g", G)]),
    ("hermes", '<tool_call>[{"name": "f", "arguments": {"s": "x"}}, {"name": "g"}]</tool_call>', "", [("f", F), ("g", G)]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"s": "x"}}\n{1}', "{1}", [("f", F)]),
    ("llama3_json", '{"name": "f", "parameters": {"s": "x"}}\n{"name": "g", "parameters": {}}', "", [("f", F), ("g", G)]),
    ("llama3_json", '{"name": "f", "parameters": {"s": "x"}}; and more', "and more", [("f", F)]),
    ("llama3_json", '{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}', []),
    ("llama3_json", '{"name": "Bob", "parameters": {}} is JSON', '{"name": "Bob", "parameters": {}} is JSON', []),
    ("llama3_json", 'So: {"name": "f", "parameters": {}}', 'So: {"name": "f", "parameters": {}}', []),
    ("pythonic", "[f(s='x')]", "", [("f", F)]),
    ("pythonic", '[f(s="x"), g()]', "", [("f", F), ("g", G)]),
    ("pythonic", '<|python_start|>[f(s="x")]<|python_end|> done', "done", [("f", F)]),
    ("pythonic", "[f(n=1.10, i=-3, b=True, m=None, l=[1, 'a', (2,)], o={'k': {}, 1: False})]", "",
     [("f", '{"n": 1.10, "i": -3, "b": true, "m": null, "l": [1, "a", [2]], "o": {"k": {}, "1": false}}')]),
    ("pythonic", r"""[f(s='it\'s "1"', m='''a
b''')]""", "", [("f", r'{"s": "it' + r"""'s \"1\"", "m": "a\nb"}""")]),
    ("pythonic", "[1, 2] are numbers", "[1, 2] are numbers", []),
    ("pythonic", "[see](here)", "[see](here)", []),
    ("pythonic", "[h(a=1)]", "[h(a=1)]", []),
    ("pythonic", "[f(s=x)] no", "x)] no", [("f", '{"s": ')]),
    ("gemma3", "```tool_code\nf(s='x')\ng()\n```", "", [("f", F), ("g", G)]),
    ("gemma3", "```tool_code\nf(s='x')\n```\n```tool_code\ng()\n```\n```python\n1\n```", "```python\n1\n```",
     [("f", F), ("g", G)]),
    ("gemma3", "Look:\n```tool_code\nprint(f(s='x'))\n```\n", "Look:\n", [("f", F)]),
    ("gemma3", '```json\n{"name": "f", "parameters": {"s": "x"}}\n```', "", [("f", F)]),
    ("gemma3", '```json\n[{"name": "f", "arguments": {"s": "x"}}]\n```', "", [("f", F)]),
    ("gemma3", '```json\n{"name": "Bob"}\n```', '```json\n{"name": "Bob"}\n```', []),
    ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"s": "x"}, "id": "abcdefghi"}]', "", [("f", F)]),
    ("mistral", '[TOOL_CALLS][{"arguments": {"s": "x"}, "name": "f"}, {"name": "g", "arguments": {}}]', "",
     [("f", F), ("g", G)]),
    ("mistral_v11", '[TOOL_CALLS]f[ARGS]{"s": "x"}[TOOL_CALLS]g[ARGS]{}', "", [("f", F), ("g", G)]),
    ("mistral_v11", 'One.[TOOL_CALLS]f[CALL_ID]abc[ARGS]{"s": "x"}', "One.", [("f", F)]),
    ("mistral", "[TOOL_CALLS] are tags", "[TOOL_CALLS] are tags", []),
    ("qwen3_coder", xml(("s", "x")), "", [("f", F)]),
    ("qwen3_coder", f"Look. {xml(('s', 'x'))}\n{xml(name='g')}\n", "Look. ", [("f", F), ("g", G)]),
    ("qwen3_coder", xml(("s", "12"), ("i", "12"), ("n", "1.10"), ("b", "True"), ("m", "null")), "",
     [("f", '{"s": "12", "i": 12, "n": 1.10, "b": true, "m": null}')]),
    ("qwen3_coder", xml(("m", "12"), ("l", "[1, 2]"), ("o", "{'a': 1}"), ("i", "many"), ("z", "[1]")), "",
     [("f", '{"m": "12", "l": [1, 2], "o": {"a": 1}, "i": "many", "z": [1]}')]),
    ("qwen3_coder", xml(("s", '\n if a < b:\n\t"é"\n')), "", [("f", r'{"s": "\n if a < b:\n\t\"é\"\n"}')]),
    ("qwen3_coder", "<function=f><parameter=s>x</parameter></function>", "", [("f", F)]),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=i>\n12", "", [("f", '{"i": ')]),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</tool_call>", "", [("f", F)]),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</func", "", [("f", '{"s": "x"')]),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=s>\n</function>\n</function>\n</tool_call>.", ".",
     [("f", '{"s": "</function>"}')]),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=i>\n12\n</function>\n</tool_call>" + xml(name="g"), "",
     [("f", '{"i": 12}'), ("g", G)]),
    ("qwen3_coder", "<tool_call> is a tag", "<tool_call> is a tag", []),
    ("deepseek_v3", f"Look.{TABS}{ONE}function{SEP}f\n```json\n{F}\n```{ONE_END}\n{ONE}function{SEP}g\n```json\n{G}\n```"
     f"{ONE_END}{ALL_END}", "Look.", [("f", F), ("g", G)]),
    ("deepseek_v31", f"{TABS}{ONE}f{SEP}{F}{ONE_END}{ONE}g{SEP}{G}{ONE_END}{ALL_END}", "", [("f", F), ("g", G)]),
    ("deepseek_v31", f"{TABS} is a tag", f"{TABS} is a tag", []),
    ("deepseek_v31", f"{TABS}{ONE}f{SEP}{{NaN}}{ONE_END} a", "a", [("f", "{NaN}")]),
    ("phi4_mini", 'functools[{"name": "f", "arguments": {"s": "x"}}, {"name": "g", "arguments": {}}]', "",
     [("f", F), ("g", G)]),
    ("phi4_mini", '<|tool_call|>[{"name": "f", "arguments": {"s": "x"}}]<|/tool_call|>', "", [("f", F)]),
    ("phi4_mini", "Python has functools.", "Python has functools.", []),
    ("gptoss", f"<|channel|>analysis<|message|>Hm.{END}{BEGIN}commentary to=functions.f <|constrain|>json<|message|>{F}"
     "<|call|>", "", [("f", F)]),
    ("gptoss", f"<|channel|>commentary<|message|>Look.{END}<|start|>assistant to=functions.f<|channel|>commentary json"
     f"<|message|>{F}<|call|>", "Look.", [("f", F)]),
    ("gptoss", f"<|channel|>analysis<|message|>Hm.{END}{BEGIN}final<|message|>So.", "So.", []),
    ("gptoss", "no channels", "no channels", []),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "content", "calls"), CASES)
def test_calls_are_read_however_the_text_is_cut(
    name: str, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    rng = random.Random(5)
    reasoning = CHANNELS if name == "gptoss" else None
    for cuts in ([], [*range(len(text))], *([rng.randrange(len(text) + 1) for _ in range(7)] for _ in range(9))):
        parts = read(ReplyParser(FORMATS[name], reasoning, schemas=SCHEMAS), text, cuts)
        assert (text_of(parts), calls_of(parts)) == (content, calls), cuts
        assert text_of(parts, Reasoning) == ("Hm." if "Hm." in text else "")
    for _, arguments in calls:
        assert arguments in BROKEN or isinstance(json.loads(arguments), dict)


@pytest.mark.parametrize(
    ("name", "before", "piece", "found"),
    [
        ("mistral_v11", '[TOOL_CALLS]f[ARGS]{"s": "', "abc", "abc"),
        ("llama3_json", '{"name": "f", "parameters": {"s": "', "abc", "abc"),
        ("deepseek_v31", f'{TABS}{ONE}f{SEP}{{"s": "', "abc", "abc"),
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=s>\n", "a\nc", r"a\nc"),
        ("pythonic", "[f(l=[1, ", "23, ", "23"),
        ("pythonic", "[f(s='a", "bc", "bc"),
    ],
)
def test_arguments_are_given_as_they_come(name: str, before: str, piece: str, found: str) -> None:
    parser = ReplyParser(FORMATS[name], schemas=SCHEMAS)
    assert parser.read(before)
    assert found in "".join(getattr(part, "text", "") for part in parser.read(piece))


@pytest.mark.parametrize(
    ("name", "function", "schema", "message"),
    [
        ("pythonic", "f", {"minProperties": 1}, "of 'f': minProperties: cannot be demanded"),
        ("pythonic", "f", {"properties": {"a b": {}}}, "of 'f': 'a b': is no name"),
        ("gemma3", "f(", {}, "'f\\(': is no name"),
        ("qwen3_coder", "f", {"type": "array"}, "of 'f': must be of type object"),
        ("qwen3_coder", "f", {"required": ["<"]}, "'<': is no name"),
        (
            "qwen3_coder",
            "f",
            {"properties": {"a": {"type": "string", "pattern": "x"}}},
            "of 'f': a: pattern: cannot be",
        ),
        ("qwen3_coder", "f", {"properties": {"a": {"enum": ["</parameter>"]}}}, "of 'f': a: enum: cannot be"),
    ],
)
def test_what_a_format_cannot_demand_exactly_is_refused(
    name: str, function: str, schema: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        FORMATS[name].grammar({function: schema}, True, json.dumps)


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "number"}, {"number", "integer"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"enum": ["a", 1, 1.5, True, None]}, {"string", "integer", "number", "boolean", "null"}),
        ({"const": {}}, {"object"}),
        ({"oneOf": [{"type": "array"}, {"const": "a"}]}, {"array", "string"}),
        ({"anyOf": [{"type": "array"}, {}]}, None),
        ({"$ref": "#/$defs/a"}, {"string"}),
        ({"$ref": "#/$defs/b"}, None),
        ({"$ref": "https://x"}, None),
        (True, None),
    ],
)
def test_the_types_that_a_schema_allows(schema: Any, types: set[str] | None) -> None:
    root = {"$defs": {"a": {"type": "string"}, "b": {"$ref": "#/$defs/b"}}}
    assert types_of(schema, root) == types


# What is characteristic of each template; those of real models are in tests/server/test_tools.py.
TEMPLATES = {
    "hermes": 'tools <tool_call>\n{"name": ..., "arguments": ...}',
    "qwen3_coder": "tools <tool_call>\n<function=example>\n<parameter=a>",
    "deepseek_v3": f"tools {TABS}{ONE}' + tool['type'] + '{SEP}' + '```json",
    "deepseek_v31": f"tools {TABS}{ONE}' + tool['function']['name'] + '{SEP}'",
    "mistral": "tools [AVAILABLE_TOOLS] [TOOL_CALLS] [",
    "mistral_v11": "tools [TOOL_CALLS]{{ name }}[ARGS]",
    "phi4_mini": "message['tools'] <|tool|>",
    "gemma3": "tools ```tool_code",
    "pythonic": "tools [func_name1(params_name1=params_value1, params_name2=params_value2...), func_name2(params)]",
    "llama3_json": 'tools <|start_header_id|>{"name": function name, "parameters": dictionary of argument name}',
    "gptoss": "tools <|channel|>analysis",
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_recognised_by_the_template_or_given(name: str) -> None:
    hf_tokenizer = SimpleNamespace(chat_template=TEMPLATES[name])
    assert format_of(SimpleNamespace(hf_tokenizer=hf_tokenizer)) is FORMATS[name]
    hf_tokenizer.chat_template = TEMPLATES[name].replace("tools", "others")
    assert format_of(SimpleNamespace(hf_tokenizer=hf_tokenizer)) is None
    assert not renders_tools(SimpleNamespace(hf_tokenizer=hf_tokenizer))
    assert format_of(SimpleNamespace(hf_tokenizer=hf_tokenizer, tool_call_parser=name)) is FORMATS[name]


@pytest.mark.parametrize(
    ("template", "name"), [("{% if thinks %}<think>", "think"), ("[THINK]", "mistral"), ("tools", None)]
)
def test_reasoning_is_recognised_by_the_template_or_given(template: str, name: str | None) -> None:
    tokenizer = SimpleNamespace(hf_tokenizer=SimpleNamespace(chat_template=template))
    assert getattr(reasoning_of(tokenizer), "name", None) == name
    tokenizer.reasoning_parser = "gptoss"
    assert reasoning_of(tokenizer) is CHANNELS
