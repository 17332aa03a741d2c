"""Grammars behind a thought, and calls in place of what a grammar says."""

import json
from copy import copy
from functools import cache
from typing import Any

import pytest

from nanoinfer.sampling.grammar.compiler import Compiler, Grammar
from nanoinfer.sampling.grammar.matcher import MAX_DIGITS, Matcher
from nanoinfer.sampling.grammar.vocabulary import Vocabulary
from nanoinfer.sampling_params import SamplingParams
from tests.helpers.grammars import EOS, accepts, allowed, byte_tokens, story_tokenizer
from tests.unit.requests.test_call_formats import ALL_END, FORMATS, ONE, ONE_END, SEP, TABS

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
DEMANDS: dict[str, tuple[dict[str, Any], str, str]] = {  # fields, what matches, what does not
    "json_schema": ({"json_schema": SCHEMA}, '{"a":1}', '{"a":"x"}'),
    "regex": ({"regex": "a+b"}, "aab", "b"),
    "choice": ({"choice": ["yes", "no"]}, "yes", "maybe"),
    "grammar": ({"grammar": 'start: "x" %json {"type": "boolean"}'}, "xtrue", "true"),
    "tool_calls": ({"tool_calls": {"g": {"type": "object"}}},
                   '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>', "{}"),
}  # fmt: skip


@cache
def compiler(call_format: str = "hermes", reasoning: str | None = "think") -> Compiler:
    tokenizer: Any = copy(story_tokenizer())
    tokenizer.tool_call_parser, tokenizer.reasoning_parser = call_format, reasoning
    return Compiler(Vocabulary(tokenizer, len(tokenizer.hf_tokenizer), [EOS]))


def matcher(made: Compiler, **fields: Any) -> Matcher:
    grammar = Grammar.of(SamplingParams(**fields))
    assert grammar is not None
    return made.compile(grammar).matcher(frozenset([EOS]))


@pytest.mark.parametrize("kind", DEMANDS)
def test_a_grammar_holds_behind_the_thought(kind: str) -> None:
    fields, right, wrong = DEMANDS[kind]
    thought = 'I "think" of </thin <think> é {"a": "'
    for state, begin in (("open", ""), ("may", "<think>")):
        for text, matches in (
            (f"{begin}{thought}</think>{right}", True),
            (f"{begin}{thought}\n</think>\n\n{right}", True),
            (f"{begin}</think>{right}", True),
            (f"{begin}{thought}</think>{wrong}", False),
            (f"{begin}{thought}</think>{right}</think>{right}", False),
            (f"{begin}{thought}", False),
            (right, state == "may"),
            (wrong, False),
        ):
            assert accepts(matcher(compiler(), **fields, reasoning=state), text) == matches, (state, text)
    assert accepts(matcher(compiler(), **fields), right)
    assert not accepts(matcher(compiler(), **fields), f"<think></think>{right}")
    assert not accepts(matcher(compiler(reasoning=None), **fields, reasoning="open"), f"</think>{right}")


def test_what_a_matcher_allows_does_not_depend_on_what_was_taken_back() -> None:
    made, single = matcher(compiler(), json_schema=SCHEMA, reasoning="may"), byte_tokens()
    assert made.takes_drafts
    text = b'<think>Well "then</think>\n{"a":12}'
    for i, byte in enumerate(text):
        before = allowed(made)
        assert made.accept(single[byte])
        made.rollback(1)
        assert allowed(made) == before, text[:i]
        made.accept(single[byte])
    made.rollback(20)
    assert all(made.accept(single[byte]) for byte in text[-20:])
    assert made.is_complete


@pytest.mark.parametrize(("state", "begin"), [("open", ""), ("may", "<think>")])
def test_only_numbers_of_the_answer_must_end(state: str, begin: str) -> None:
    made, single = matcher(compiler(), json_schema=SCHEMA, reasoning=state), byte_tokens()
    digits = "3" * MAX_DIGITS
    for byte in f'{begin}Is it "{digits}'.encode():
        assert made.accept(single[byte])
    assert single[ord("3")] in allowed(made)
    for byte in f'</think>{{"a":{digits}'.encode():
        assert made.accept(single[byte])
    assert single[ord("3")] not in allowed(made)


@pytest.mark.parametrize("name", FORMATS)
def test_a_call_may_stand_in_place_of_the_json_in_every_format(name: str) -> None:
    reasoning = "gptoss" if name == "gptoss" else "think"
    functions = {"g": {"type": "object", "properties": {}}}
    fields: dict[str, Any] = {"json_schema": SCHEMA, "tool_calls": functions, "reasoning": "may"}
    made = compiler(name, reasoning)
    call, json_text = CALLS[name], DEMANDS["json_schema"][1]
    if name == "gptoss":
        thought, before = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant", "<|channel|>final<|message|>"
    else:
        thought, before = "<think>Hm</think>\n", ""
    for text, matches in (
        (call, True),
        (thought + call, True),
        (before + json_text, True),
        (thought + before + json_text, True),
        (before + json_text + call, False),
        (call.replace("g", "h"), False),
        (before + DEMANDS["json_schema"][2], False),
    ):
        assert accepts(matcher(made, **fields), text) == matches, text
    assert accepts(matcher(made, json_schema=SCHEMA, reasoning="may"), thought + before + json_text)
    like_calls = {**fields, "json_schema": {"type": "object"}}
    for text in (before + '{"name":"g","parameters":{}}', before + '{"n":[]}', thought + call):
        assert accepts(matcher(made, **like_calls), text), text
    assert not accepts(matcher(made, json_schema=SCHEMA, reasoning="may"), call)


CALLS = {
    "hermes": '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=g>\n</function>\n</tool_call>",
    "llama3_json": '{"name": "g", "parameters": {}}',
    "pythonic": "[g()]",
    "gemma3": "```tool_code\ng()\n```",
    "mistral": '[TOOL_CALLS][{"name": "g", "arguments": {}}]',
    "mistral_v11": "[TOOL_CALLS]g[ARGS]{}",
    "deepseek_v3": f"{TABS}{ONE}function{SEP}g\n```json\n{{}}\n```{ONE_END}{ALL_END}",
    "deepseek_v31": f"{TABS}{ONE}g{SEP}{{}}{ONE_END}{ALL_END}",
    "phi4_mini": 'functools[{"name": "g", "arguments": {}}]',
    "gptoss": "<|channel|>commentary to=functions.g <|constrain|>json<|message|>{}",
}


def test_calls_beside_another_grammar_end_with_the_first_if_they_must() -> None:
    grammar = Grammar.of(SamplingParams(regex="a", tool_calls={"g": {}}, parallel_tool_calls=False))
    assert grammar == Grammar("regex", "a", json.dumps([{"g": {}}, False]))
