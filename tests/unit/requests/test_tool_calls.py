"""ReplyParser: the calls and thoughts in what a model writes, however the text is cut."""

import json
import random
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from nanoinfer.requests.tokenizer import IncrementalDetokenizer
from nanoinfer.requests.tool_calls.call_format import CallFormat
from nanoinfer.requests.tool_calls.cursor import Arguments, CallBegin, CallEnd, Part, Reasoning, Text
from nanoinfer.requests.tool_calls.hermes import Hermes
from nanoinfer.requests.tool_calls.reasoning import THINK
from nanoinfer.requests.tool_calls.registry import HERMES, format_of
from nanoinfer.requests.tool_calls.reply import ReplyParser
from tests.helpers.texts import TOKENIZER

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>'
OPEN = CALL.removesuffix("\n</tool_call>")
UNBALANCED = '<tool_call>{"name": "f", "arguments": {"a": "{"}}'
TAGGED = '<tool_call>{"name": "f", "arguments": {"a": "</tool_call> <tool_call>{}<think>"}}</tool_call>'
RAW = '<tool_call>{"name": "f", "arguments": {"a": "x\n\ty"}}</tool_call>'


def read(parser: ReplyParser, text: str, cuts: list[int] = ()) -> list[Part]:  # type: ignore[assignment]
    """All parts of `text`, read in pieces."""
    edges = [0, *sorted(cuts), len(text)]
    parts = [part for begin, end in pairwise(edges) for part in parser.read(text[begin:end])]
    return parts + parser.read("", last=True)


def text_of(parts: list[Part], kind: type[Text] | type[Reasoning] = Text) -> str:
    return "".join(part.text for part in parts if isinstance(part, kind))


def calls_of(parts: list[Part]) -> list[tuple[str, str]]:
    """(name, arguments) of the calls; each begins and ends in its turn."""
    calls, ids = list[tuple[str, str]](), set()
    for part in parts:
        if isinstance(part, CallBegin):
            assert part.index == len(calls)
            assert part.id.startswith("call_") or (len(part.id) == 9 and part.id.isalnum())
            ids.add(part.id)
            calls.append((part.name, ""))
        elif isinstance(part, Arguments | CallEnd):
            assert part.index == len(calls) - 1
            if isinstance(part, Arguments):
                calls[-1] = (calls[-1][0], calls[-1][1] + part.text)
    assert len(ids) == len(calls) == len([part for part in parts if isinstance(part, CallEnd)])
    return calls


def parse(
    text: str, cuts: list[int], is_thinking: bool = False, call_format: CallFormat = HERMES
) -> tuple[str, str, list[tuple[str, str]]]:
    """Thoughts, content and calls of `text`, read in pieces."""
    parts = read(ReplyParser(call_format, THINK, is_thinking), text, cuts)
    return text_of(parts, Reasoning), text_of(parts), calls_of(parts)


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
        ('<tool_call>\n{"arguments": {}', '<tool_call>\n{"arguments": {}', []),
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
        # a thought comes first, or is none
        (f"{CALL}<think>a</think>{CALL}", "<think>a</think>", ["weather", "weather"]),
        (f"a</think>{CALL}", "a</think>", ["weather"]),
    ],
)
def test_calls_are_found_however_the_text_is_cut(text: str, content: str, names: list[str]) -> None:
    rng = random.Random(5)
    for cuts in ([], [*range(len(text))], *([rng.randrange(len(text) + 1) for _ in range(7)] for _ in range(9))):
        _, found, calls = parse(text, cuts)
        assert (found, [name for name, _ in calls]) == (content, names), cuts
    for name, arguments in calls:
        wanted = {"f": {"a": "</tool_call> <tool_call>{}<think>"}, "weather": {"city": "Oslo", "days": 3}}
        assert json.loads(arguments) == wanted[name]


@pytest.mark.parametrize(
    ("text", "is_thinking", "reasoning", "content", "calls"),
    [
        (f"<think>{CALL}</think>\n\n{CALL}", False, CALL, "", 1),
        (f"\n<think>\n\na\n\nb\n</think>\n\nOne\n{CALL}", False, "a\n\nb", "One\n", 1),
        (f"<think>Do I write <tool_call>? {CALL}", False, f"Do I write <tool_call>? {CALL}", "", 0),
        ("<think>a</think><think>b</think>c", False, "ab", "c", 0),
        ("<think>a</thi", False, "a</thi", "", 0),
        (" <thi", False, "", " <thi", 0),
        ("One <think>a</think>", False, "", "One <think>a</think>", 0),
        (f"Shall I? {CALL}\n</think>\n\n{CALL}", True, f"Shall I? {CALL}", "", 1),
    ],
)
def test_thoughts_are_found_however_the_text_is_cut(
    text: str, is_thinking: bool, reasoning: str, content: str, calls: int
) -> None:
    rng = random.Random(5)
    for cuts in ([], [*range(len(text))], *([rng.randrange(len(text) + 1) for _ in range(7)] for _ in range(9))):
        thought, found, made = parse(text, cuts, is_thinking)
        assert (thought, found, len(made)) == (reasoning, content, calls), cuts


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
    assert (THINK.state(TOKENIZER, TOKENIZER.encode(prompt)) == "open") == opens


class Other(Hermes):
    begins, ends = ("[[call",), ("call]]",)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_format_with_other_tags_reads_its_own_calls_and_no_others(size: int) -> None:
    text = f"one {CALL} two {CALL.replace('<tool_call>', '[[call').replace('</tool_call>', 'call]]')}three"
    _, content, calls = parse(text, list(range(size, len(text), size)), call_format=Other())
    assert content == f"one {CALL} two three"
    assert calls == [("weather", '{"city": "Oslo", "days": 3}')]


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


def test_a_call_is_given_as_it_is_written_and_text_at_once() -> None:
    parser = ReplyParser(HERMES)
    assert parser.read("one ") == [Text("one ")]
    assert parser.read('two <tool_call>{"name": "f", "arg') == [Text("two ")]
    begin, arguments = parser.read('uments": {"ci')
    assert isinstance(begin, CallBegin)
    assert (begin.name, arguments) == ("f", Arguments(0, '{"ci'))
    assert parser.read('ty": "Os\\') == [Arguments(0, 'ty": "Os')]
    assert parser.read('nlo", "d": 12') == [Arguments(0, '\\nlo", "d": ')]
    assert parser.read("34}") == [Arguments(0, "1234}")]
    assert parser.read("}") == [
        CallEnd(0, len('one two <tool_call>{"name": "f", "arguments": {"city": "Os\\nlo", "d": 1234}}'))
    ]
    assert parser.read("\n</tool_call>\n") == []
    assert parser.read("three") == [Text("three")]
    assert parser.read("<tool_call>") == []
    assert parser.read(" is a tag") == [Text("<tool_call> is a tag")]


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "f", "arguments": "fox"}',
        '<tool_call>{{"name": "f"}}</tool_call>',
        "<tool_call>{'name': 'f'}\n</tool_call>",
        r'<tool_call>{"name": "\x{"}</tool_call>',
    ],
)
@pytest.mark.parametrize("size", [1, 4, 100])
def test_what_can_be_no_call_any_more_is_given_at_once_and_the_next_one_is_the_first(text: str, size: int) -> None:
    parser = ReplyParser(HERMES)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert "".join(text_of(parser.read(piece)) for piece in pieces) == text
    assert [name for name, _ in calls_of(parser.read(CALL))] == ["weather"]


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ('{"a": "é🦊", "b": 1.5}', '{"a": "é🦊", "b": 1.5}'),
        ('{"a":1,\n  "b" : [ ]}', '{"a":1,\n  "b" : [ ]}'),
        ("{}", "{}"),
        ("null", "{}"),
        ('""', "{}"),
        (r'"{\"a\": 1}"', '{"a": 1}'),
        (r'{"a\"}": "\\\"{"}', r'{"a\"}": "\\\"{"}'),
        ('"fox"', None),
        ("[]", None),
        ("5", None),
        # numbers stay as they are written
        ('{"a": 3E400, "b": 1.10}', '{"a": 3E400, "b": 1.10}'),
        ('{"a": 12345678901234567890.123456789}', '{"a": 12345678901234567890.123456789}'),
        (r'"{\"a\": 3E400}"', '{"a": 3E400}'),
        # control characters become what JSON allows
        ('{"a": "x\n\ty\x01"}', r'{"a": "x\n\ty\u0001"}'),
        ('{"a": ' + "[" * 20_000 + "]" * 20_000 + "}", '{"a": ' + "[" * 20_000 + "]" * 20_000 + "}"),
        # once a call has begun, its end is the closing tag, whatever stands before it
        ('{"a": NaN, "b": "</tool_call>', '{"a": NaN, "b": "'),
        ('{"a": [1}]</tool_call>', '{"a": [1}]'),
        ('{"a": 1</tool_call>', '{"a": 1'),
    ],
    ids=lambda it: str(it)[:20],
)
@pytest.mark.parametrize("name", ["arguments", "parameters"])
@pytest.mark.parametrize("order", ['{{"id": 7, "name": "f", "{}": {}}}', '{{"id": 7, "{}": {}, "name": "f"}}'])
def test_the_arguments_of_a_call_are_an_object_as_it_is_written(
    arguments: str, written: str | None, name: str, order: str
) -> None:
    if "</tool_call>" in arguments and order.endswith('"f"}}'):
        return  # no call has begun
    text = f"<tool_call> {order.format(name, arguments)}"
    calls = calls_of(read(ReplyParser(HERMES), text))
    assert calls == ([] if written is None else [("f", written)])


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"name": "f"}', "{}"),
        ('{"name": "f", "arguments": {"a": 1}, "parameters": {"a": 2}}', '{"a": 1}'),
        ('{"name": "f", "arguments": {"a": 1}, "arguments": {"a": 2}}', '{"a": 1}'),
        ('{"name": "f", "arguments": {"a": 1}', '{"a": 1}'),
        (r'{"name": "\ud800"}', None),
        ('{"arguments": {}}', None),
        ('{"name": null}', None),
        ("{}", None),
        ("", None),
    ],
)
def test_a_call_has_a_name(text: str, arguments: str | None) -> None:
    calls = calls_of(read(ReplyParser(HERMES), f"<tool_call>{text}"))
    assert calls == ([] if arguments is None else [("f", arguments)])


def detokenized(text: str, size: int, **options: Any) -> tuple[str, IncrementalDetokenizer]:
    """What comes out of a text whose tokens have so many characters, and the detokenizer after it."""

    class Pieces:
        special_ids = frozenset[int]()

        def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
            return "".join(text[i * size : (i + 1) * size] for i in ids)

    detokenizer = IncrementalDetokenizer(Pieces(), first_call=ReplyParser(HERMES, THINK), **options)  # type: ignore[arg-type]
    out = "".join(detokenizer.add(i) for i in range(len(text)) if not detokenizer.stopped)
    return out + detokenizer.flush(), detokenizer


@pytest.mark.parametrize("size", [1, 3, 200])
@pytest.mark.parametrize("call", [CALL, TAGGED, RAW, OPEN])
def test_the_first_call_ends_a_text_with_its_last_brace(call: str, size: int) -> None:
    text = f"<think>{CALL}</think> Look: {call}\n{CALL} more"
    out, detokenizer = detokenized(text, size, stop=["more"])
    assert out == text[: len(out)] == f"<think>{CALL}</think> Look: {call[: call.rindex('}') + 1]}"
    assert detokenizer.stop_found is None


@pytest.mark.parametrize("size", [1, 3, 9, 16, 200])
def test_of_what_follows_the_first_call_only_a_part_of_its_tag_may_be_left(size: int) -> None:
    out, detokenizer = detokenized(f"{UNBALANCED}\n</tool_call> and a long end", size)
    assert detokenizer.call_found
    assert UNBALANCED in out
    assert f"{UNBALANCED}\n</tool_call>".startswith(out)
