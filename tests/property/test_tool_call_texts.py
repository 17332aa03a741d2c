"""ReplyParser on any texts: what is read does not depend on how a text is cut, and is what was written."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nanoinfer.requests.tool_calls.cursor import Reasoning
from nanoinfer.requests.tool_calls.gptoss import CHANNELS
from nanoinfer.requests.tool_calls.reasoning import THINK
from nanoinfer.requests.tool_calls.registry import HERMES
from nanoinfer.requests.tool_calls.reply import ReplyParser
from tests.unit.requests.test_call_formats import CASES, FORMATS, SCHEMAS
from tests.unit.requests.test_tool_calls import calls_of, parse, read, text_of

PARTS = ('{"name": "f"', ', "arguments": {"a": 1}', "}", "}", "{", '"', "\\", "\n", " ", "x", "<", "</to")
TAGS = (*HERMES.tags, "<think>", "</think>")
CHUNKS = (*TAGS, *TAGS, *PARTS)
scraps = st.lists(st.sampled_from(CHUNKS) | st.text(max_size=3), max_size=20).map("".join)
words = st.text(max_size=8) | st.sampled_from([*TAGS, 'a"b', "{}", "\\"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(words, values, max_size=3)


def cuts_of(data: st.DataObject, text: str) -> list[int]:
    return data.draw(st.lists(st.integers(0, len(text)), max_size=12))


@given(scraps, st.booleans(), st.data())
def test_what_is_read_does_not_depend_on_how_the_text_is_cut(text: str, thinks: bool, data: st.DataObject) -> None:
    whole = parse(text, [], thinks)
    assert parse(text, cuts_of(data, text), thinks) == whole
    assert parse(text, [*range(len(text))], thinks) == whole


@given(st.sampled_from([*FORMATS]), st.data())
def test_in_no_format_it_depends_on_how_the_text_is_cut(name: str, data: st.DataObject) -> None:
    call_format, reasoning = FORMATS[name], CHANNELS if name == "gptoss" else THINK
    texts = [text for each, text, _, _ in CASES if each == name]
    cut = st.sampled_from(texts).flatmap(lambda text: st.integers(0, len(text)).map(lambda at: (text[:at], text[at:])))
    tags = st.sampled_from([*call_format.tags, *reasoning.tags, "<|im_start|>", "\n", '"', "}", ")", "</function>"])
    text = "".join(data.draw(st.lists(tags | cut.map(lambda two: two[0]) | cut.map(lambda two: two[1]), max_size=6)))

    def made(cuts: list[int]) -> tuple[str, str, list[tuple[str, str]]]:
        parser = ReplyParser(call_format, reasoning, False, ["<|im_start|>"], SCHEMAS)
        parts = read(parser, text, cuts)
        return text_of(parts, Reasoning), text_of(parts), calls_of(parts)

    whole = made([])
    assert made(cuts_of(data, text)) == made([*range(len(text))]) == whole
    assert "<|im_start|>" not in whole[1]


@given(st.lists(st.tuples(words.filter(bool), objects), max_size=3), st.booleans(), st.booleans(), st.data())
def test_what_was_written_as_calls_is_read_as_these_calls(
    written: list[tuple[str, Any]], ascii_only: bool, closes: bool, data: st.DataObject
) -> None:
    calls = [json.dumps({"name": name, "arguments": each}, ensure_ascii=ascii_only) for name, each in written]
    end = "\n</tool_call>\n" if closes else "\n"
    text = "".join(f"<tool_call>\n{call}{end}" for call in calls)
    thought, content, found = parse(text, cuts_of(data, text))
    assert thought == content == ""
    assert [(name, json.loads(arguments)) for name, arguments in found] == written
