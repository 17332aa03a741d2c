"""The grammar of tool calls: what models in Qwen's style write, and nothing else."""

import json
import random
from typing import Any

import jsonschema
import pytest

from nanoinfer.grammars.matcher import MAX_DIGITS
from nanoinfer.requests.tool_calls import BEGIN, END
from tests.helpers.grammars import accepts, allowed, byte_tokens, matcher_of, random_output

WEATHER = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Oslo", "Rome"]}},
}
TIME = {
    "type": "object",
    "properties": {"zone": {"$ref": "#/$defs/city"}},
    "required": ["zone"],
    "additionalProperties": False,
    "$defs": {"city": {"const": "Paris"}},  # the same reference, another meaning
}
FUNCTIONS = {"weather": WEATHER, "time": TIME}
OSLO = f'{BEGIN}\n{{"name": "weather", "arguments": {{"city": "Oslo", "days": 3}}}}\n{END}'
PARIS = f'{BEGIN}\n{{"name": "time", "arguments": {{"zone": "Paris"}}}}\n{END}'


def grammar(functions: dict[str, Any], parallel: bool) -> tuple[str, str]:
    return "tool_calls", json.dumps([functions, parallel])


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (OSLO, 1),
        (PARIS, 1),
        (f"{OSLO}\n{PARIS}", 2),
        (f"{PARIS}\n{PARIS}\n{OSLO}", 3),
        ("", 0),
        (OSLO + PARIS, 0),
        (f"{OSLO}\n", 0),
        (f"I say {OSLO}", 0),
        (OSLO.replace("Oslo", "Paris"), 0),
        (PARIS.replace("Paris", "Oslo"), 0),
        (OSLO.replace("weather", "time"), 0),
        (OSLO.replace(', "days": 3', ""), 0),
        (OSLO.replace("3", "3.5"), 0),
        (OSLO.replace(': "O', ':"O'), 0),
    ],
)
def test_what_matches(text: str, calls: int, parallel: bool) -> None:
    assert accepts(matcher_of(*grammar(FUNCTIONS, parallel)), text) == (calls == 1 or (parallel and calls > 1))


def test_random_outputs_are_calls_that_the_schemas_allow() -> None:
    rng, seen = random.Random(4), set[str]()
    functions = {
        "weather": WEATHER,
        'a "quoted" é': {"type": "object", "properties": {"n": {"type": "number"}}, "additionalProperties": False},
    }
    for i in range(30):
        output = random_output(matcher_of(*grammar(functions, parallel=i % 2 == 0)), rng, most=300)
        if output is None:
            continue
        calls = output.decode().removesuffix(END).split(f"{END}\n")
        assert i % 2 == 0 or len(calls) == 1
        for each in calls:
            call = json.loads(each.removeprefix(BEGIN))
            assert call.keys() == {"name", "arguments"}
            jsonschema.validate(call["arguments"], functions[call["name"]])
            seen.add(call["name"])
        seen.add("several" if len(calls) > 1 else "one")
    assert seen == {*functions, "one", "several"}


def test_a_call_that_must_be_the_only_one_ends_the_output() -> None:
    alone, first = (matcher_of(*grammar({"time": TIME}, parallel)) for parallel in (False, True))
    for matcher in (alone, first):
        assert accepts(matcher, PARIS)
    assert alone.must_stop
    assert not first.must_stop


def test_what_is_forced_can_be_drafted() -> None:
    """Of a single function, everything up to the first choice in its arguments; the tokens are the tokenizer's own."""
    matcher = matcher_of(*grammar({"weather": WEATHER}, parallel=False))
    assert len(matcher.forced_tokens()) > 10


def test_numbers_in_arguments_end() -> None:
    matcher, single = matcher_of(*grammar({"weather": WEATHER}, parallel=False)), byte_tokens()
    for byte in OSLO.partition("3")[0].encode() + b"3" * MAX_DIGITS:
        assert matcher.accept(single[byte])
    assert single[ord("3")] not in allowed(matcher)
    assert single[ord("}")] in allowed(matcher)
