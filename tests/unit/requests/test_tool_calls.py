"""CallParser: the calls in what a model writes, however the text is cut."""

import json
import random
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from nanoinfer.requests.tokenizer import IncrementalDetokenizer
from nanoinfer.requests.tool_calls import HERMES, CallFormat, CallParser, format_of, opens_thought
from tests.helpers.texts import TOKENIZER

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>'
OPEN = CALL.removesuffix("\n</tool_call>")
UNBALANCED = '<tool_call>{"name": "f", "arguments": {"a": "{"}}'
TAGGED = '<tool_call>{"name": "f", "arguments": {"a": "</tool_call> <tool_call>{}<think>"}}</tool_call>'
RAW = '<tool_call>{"name": "f", "arguments": {"a": "x\n\ty"}}</tool_call>'


def parse(
    text: str, cuts: list[int], is_thinking: bool = False, call_format: CallFormat = HERMES
) -> tuple[str, list[dict[str, Any]]]:
    """Content and calls of `text`, read in pieces."""
    parser = CallParser(is_thinking, call_format)
    edges = [0, *sorted(cuts), len(text)]
    parts = [part for begin, end in pairwise(edges) for part in parser.read(text[begin:end])]
    parts += parser.read("", last=True)
    content = "".join(part for part in parts if isinstance(part, str))
    calls = [part for part in parts if not isinstance(part, str)]
    assert parser.calls == len(calls)
    return content, calls


@pytest.mark.parametrize(
    ("text", "content", "names"),
    [
        ("plain text", "plain text", []),
        (CALL, "", ["weather"]),
        (f"Let me look. {CALL}", "Let me look. ", ["weather"]),
        (f"{CALL}\n{CALL}", "", ["weather", "weather"]),
        (f"Look. {CALL}\n{CALL}\n", "Look. ", ["weather", "weather"]),
        (f"{CALL}\n That was it. {CALL} \n Bye <tool", "That was it. Bye <tool", ["weather", "weather"]),
        ("a < b <tool", "a < b <tool", []),
        # what is no call is text, and what follows is read as ever
        ("<tool_call>\nno json\n</tool_call>", "<tool_call>\nno json\n</tool_call>", []),
        ("<tool_call>\n[1]\n</tool_call>", "<tool_call>\n[1]\n</tool_call>", []),
        ('<tool_call>\n{"name": "cut', '<tool_call>\n{"name": "cut', []),
        ('<tool_call>{"name": 5}</tool_call>', '<tool_call>{"name": 5}</tool_call>', []),
        (f"<tool_call>{CALL}", "<tool_call>", ["weather"]),
        ('<tool_call>{"name": "f</tool_call>' + CALL, '<tool_call>{"name": "f</tool_call>', ["weather"]),
        ("<tool_call>", "<tool_call>", []),
        ("I use <tool_call> for that. " + CALL, "I use <tool_call> for that. ", ["weather"]),
        # tags in an argument, and closing tags that are missing or cut off
        (TAGGED, "", ["f"]),
        (TAGGED + CALL, "", ["f", "weather"]),
        (OPEN, "", ["weather"]),
        (f"{OPEN}\n{CALL}", "", ["weather", "weather"]),
        (f"{OPEN}\n</tool_", "", ["weather"]),
        (f"{OPEN} and more", "and more", ["weather"]),
        # thoughts
        (f"<think>{CALL}</think>\n\n{CALL}", f"<think>{CALL}</think>\n\n", ["weather"]),
        (f"<think>Do I write <tool_call>? {CALL}", f"<think>Do I write <tool_call>? {CALL}", []),
        (f"{CALL}<think>a</think>{CALL}", "<think>a</think>", ["weather", "weather"]),
        (f"a</think>{CALL}", "a</think>", ["weather"]),
    ],
)
def test_calls_are_found_however_the_text_is_cut(text: str, content: str, names: list[str]) -> None:
    rng = random.Random(5)
    for cuts in ([], [*range(len(text))], *([rng.randrange(len(text) + 1) for _ in range(7)] for _ in range(50))):
        found, calls = parse(text, cuts)
        assert (found, [call["function"]["name"] for call in calls]) == (content, names), cuts
    assert [call["index"] for call in calls] == list(range(len(calls)))
    assert len({call["id"] for call in calls}) == len(calls)
    for call in calls:
        arguments = {"a": "</tool_call> <tool_call>{}<think>"}
        weather = {"city": "Oslo", "days": 3}
        assert json.loads(call["function"]["arguments"]) == (
            weather if call["function"]["name"] == "weather" else arguments
        )


def test_a_thought_may_have_begun_in_the_prompt() -> None:
    text = f"Shall I? {CALL}\n</think>\n\n{CALL}"
    for cuts in ([], [*range(len(text))]):
        content, calls = parse(text, cuts, is_thinking=True)
        assert (content, len(calls)) == (f"Shall I? {CALL}\n</think>\n\n", 1)


@pytest.mark.parametrize(
    ("prompt", "opens"),
    [
        ("Hi<think>\n", True),
        ("<think>", True),
        ("<think>\n\n</think>\n\n", False),
        ("what is <think>? ", False),
        ("", False),
    ],
)
def test_a_prompt_that_opens_a_thought_ends_with_its_tag(prompt: str, opens: bool) -> None:
    assert opens_thought(TOKENIZER, TOKENIZER.encode(prompt)) == opens


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_format_with_other_tags_reads_its_own_calls_and_no_others(size: int) -> None:
    other = CallFormat("[[call", "call]]")
    text = f"one {CALL} two {CALL.replace(HERMES.begin, other.begin).replace(HERMES.end, other.end)}three"
    content, calls = parse(text, list(range(size, len(text), size)), call_format=other)
    assert content == f"one {CALL} two three"
    assert [call["function"]["arguments"] for call in calls] == ['{"city": "Oslo", "days": 3}']


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ('{% if tools %}<tool_call>\n{"name": ..., "arguments": ...}', HERMES),
        ({"default": "", "tool_use": '{% if tools %}<tool_call>{\\"arguments\\": '}, HERMES),
        ('{% if tools %}{"name": ..., "arguments": ...}', None),
        ('{% if tools %}<tool_call><function=f>"arguments"', None),
        (None, None),
    ],
)
def test_the_chat_template_says_which_format_a_model_writes(template: object, found: CallFormat | None) -> None:
    tokenizer = SimpleNamespace(hf_tokenizer=SimpleNamespace(chat_template=template))
    assert format_of(tokenizer) is found


def test_a_call_is_given_as_soon_as_its_object_is_complete_and_text_at_once() -> None:
    parser = CallParser()
    assert [*parser.read("one ")] == ["one "]
    assert "".join(map(str, parser.read(f"two {OPEN[:-1]}"))) == "two "
    assert [call["function"]["name"] for call in parser.read("}") if isinstance(call, dict)] == ["weather"]
    assert [*parser.read("\n</tool_call>\n")] == []
    assert [*parser.read("three")] == ["three"]
    assert [*parser.read("<tool_call>")] == [""]
    assert [*parser.read(" is a tag")] == ["<tool_call>", " is a tag"]


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"x": "}"}',
        '<tool_call>{"name": "f", "arguments": "fox"}',
        '<tool_call>{{"name": "f"}}</tool_call>',
        "<tool_call>{'name': 'f'}\n</tool_call>",
        r'<tool_call>{"name": "\x{"}</tool_call>',
    ],
)
@pytest.mark.parametrize("size", [1, 4, 100])
def test_what_can_be_no_call_any_more_is_given_at_once_and_the_next_one_is_the_first(text: str, size: int) -> None:
    parser = CallParser()
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert "".join(str(part) for piece in pieces for part in parser.read(piece)) == text
    assert len([part for part in parser.read(CALL) if isinstance(part, dict)]) == 1


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ('{"a": "é🦊", "b": 1.5}', '{"a": "é🦊", "b": 1.5}'),
        ('{"a":1,\n  "b" : [ ]}', '{"a":1,\n  "b" : [ ]}'),
        ("{}", "{}"),
        ("null", "{}"),
        (r'"{\"a\": 1}"', '{"a": 1}'),
        (r'{"a\"}": "\\\"{"}', r'{"a\"}": "\\\"{"}'),
        ('"fox"', None),
        ("[]", None),
        ("5", None),
        (r'{"a": "\ud800"}', None),
        (r'"{\"a\": \"\\ud800\"}"', None),
        ('{"a": NaN}', None),
        # numbers stay as they are written
        ('{"a": 3E400, "b": 1.10}', '{"a": 3E400, "b": 1.10}'),
        ('{"a": 12345678901234567890.123456789}', '{"a": 12345678901234567890.123456789}'),
        (r'"{\"a\": 3E400}"', '{"a": 3E400}'),
        # control characters become what JSON allows
        ('{"a": "x\n\ty\x01"}', r'{"a": "x\n\ty\u0001"}'),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", None),
    ],
    ids=lambda it: str(it)[:20],
)
@pytest.mark.parametrize("name", ["arguments", "parameters"])
def test_the_arguments_of_a_call_are_an_object_that_every_client_can_read(
    arguments: str, written: str | None, name: str
) -> None:
    text = f' {{"id": 7, "{name}": {arguments}, "name": "f"}}'
    call, end = HERMES.call_of(text + "]", 0)
    assert (call and call["function"]["arguments"]) == written
    assert call is None or end == len(text)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"name": "f"}', "{}"),
        ('{"name": "f", "arguments": {"a": 1}, "parameters": {"a": 2}}', '{"a": 1}'),
        ('{"name": "f", "arguments": {"a": 1}, "arguments": {"a": 2}}', '{"a": 2}'),
        (r'{"name": "\ud800"}', None),
        ('{"arguments": {}}', None),
        ('{"name": null}', None),
        ("{}", None),
        ("", None),
    ],
)
def test_a_call_has_a_name(text: str, arguments: str | None) -> None:
    call, _ = HERMES.call_of(text, 0)
    assert (call and call["function"]["arguments"]) == arguments


def detokenized(text: str, size: int, **options: Any) -> tuple[str, IncrementalDetokenizer]:
    """What comes out of a text whose tokens have so many characters, and the detokenizer after it."""

    class Pieces:
        special_ids = frozenset[int]()

        def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
            return "".join(text[i * size : (i + 1) * size] for i in ids)

    detokenizer = IncrementalDetokenizer(Pieces(), first_call=CallParser(), **options)  # type: ignore[arg-type]
    out = "".join(detokenizer.add(i) for i in range(len(text)) if not detokenizer.stopped)
    return out + detokenizer.flush(), detokenizer


@pytest.mark.parametrize("size", [1, 3, 200])
@pytest.mark.parametrize("call", [CALL, TAGGED, RAW, OPEN])
def test_the_first_call_ends_a_text_with_its_last_brace(call: str, size: int) -> None:
    text = f"Look: <think>{CALL}</think> {call}\n{CALL} more"
    out, detokenizer = detokenized(text, size, stop=["more"])
    assert out == text[: len(out)] == f"Look: <think>{CALL}</think> {call[: call.rindex('}') + 1]}"
    assert detokenizer.stop_found is None


@pytest.mark.parametrize("size", [1, 3, 9, 16, 200])
def test_of_what_follows_the_first_call_only_a_part_of_its_tag_may_be_left(size: int) -> None:
    out, detokenizer = detokenized(f"{UNBALANCED}\n</tool_call> and a long end", size)
    assert detokenizer.call_found
    assert UNBALANCED in out
    assert f"{UNBALANCED}\n</tool_call>".startswith(out)
