"""Calls that models write in other ways than usual: tags that are special tokens, thoughts, tags within arguments."""

import json
from pathlib import Path
from typing import Any

import pytest

from nanoinfer import LLM
from tests.helpers.scripted_checkpoint import make
from tests.helpers.servers import patient_app
from tests.server.test_tools import TOOLS, chat

ALL_TAGS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
# As Qwen's, in short; with a thought that the prompt opens, if that is asked for.
QWEN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    '{% if tools and false %}<tool_call>{"name": ..., "arguments": ...}</tool_call>{% endif %}'
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{% if thinks %}<think>\n{% endif %}"
)
NESTED = '{"name": "weather", "arguments": {"city": "</tool_call><tool_call>{}"}}'
OSLO = '{"name": "weather", "arguments": {"city": "Oslo"}}'
ROME = OSLO.replace("Oslo", "Rome")


def scripted(tmp_path: Path, script: list[str], special: tuple[str, ...] = (), named: bool = False) -> Any:
    """A server whose model writes `script`; `special`: which tags are special tokens."""
    added = ("<|im_start|>", *ALL_TAGS)
    path = make(tmp_path / "model", script, QWEN, added, ("<|im_start|>", *special), named)
    return patient_app(LLM(path, max_total_tokens=1024))


def written(app: Any, stream: bool, **more: Any) -> tuple[str, list[str], str, int]:
    """Content, arguments of the calls, finish reason and number of tokens of an answer."""
    more = {"tools": TOOLS, "temperature": 0, "max_tokens": 40, **more}
    answer = chat(app, stream=stream, **more, **({"stream_options": {"include_usage": True}} if stream else {}))
    assert answer.status_code == 200, answer.text
    if not stream:
        made = answer.json()
        (choice,), message = made["choices"], made["choices"][0]["message"]
        content, calls, reason = message["content"] or "", message.get("tool_calls", []), choice["finish_reason"]
    else:
        *events, made = [json.loads(event.removeprefix("data: ")) for event in answer.text.split("\n\n")[:-2]]
        choices = [event["choices"][0] for event in events]
        content = "".join(choice["delta"].get("content") or "" for choice in choices)
        calls = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
        reason = choices[-1]["finish_reason"]
    return content, [call["function"]["arguments"] for call in calls], reason, made["usage"]["completion_tokens"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("special", [(), ALL_TAGS, ("<tool_call>",), ("</think>",)], ids=str)
def test_tags_may_be_special_tokens(tmp_path: Path, stream: bool, special: tuple[str, ...]) -> None:
    """The parser sees them all, the client those that are none."""
    script = ["<think>", "Hm ", "</think>", "Look. ", "<tool_call>", OSLO, "</tool_call>"]
    script += ["<|im_start|>", "Bye"]  # a special token that is no tag
    content, calls, reason, _ = written(scripted(tmp_path, script, special), stream)
    shown = ["" if piece in (*special, "<|im_start|>") else piece for piece in (*script[:4], "Bye")]
    assert (content, calls, reason) == ("".join(shown), ['{"city": "Oslo"}'], "tool_calls")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_may_ask_to_see_special_tokens(tmp_path: Path, stream: bool) -> None:
    script = ["<|im_start|>", "Look. ", "<tool_call>", OSLO, "</tool_call>"]
    app = scripted(tmp_path, script, ALL_TAGS)
    assert written(app, stream, skip_special_tokens=False)[:2] == ("<|im_start|>Look. ", ['{"city": "Oslo"}'])
    assert written(app, stream)[:2] == ("Look. ", ['{"city": "Oslo"}'])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("special", [(), ALL_TAGS], ids=str)
def test_a_thought_that_the_template_opens_has_no_calls(tmp_path: Path, stream: bool, special: tuple[str, ...]) -> None:
    script = ["Maybe ", "<tool_call>", ROME, "</tool_call>", "? ", "</think>", f"<tool_call>{OSLO}</tool_call>"]
    app = scripted(tmp_path, script, special)
    for parallel in (True, False):
        more = {"chat_template_kwargs": {"thinks": True}, "parallel_tool_calls": parallel}
        content, calls, _, _ = written(app, stream, **more)
        assert content == "".join("" if piece in special else piece for piece in script[:-1])
        assert calls == ['{"city": "Oslo"}']
    assert written(app, stream)[1] == ['{"city": "Rome"}', '{"city": "Oslo"}']


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("special", [(), ALL_TAGS], ids=str)
def test_without_parallel_calls_the_request_ends_with_the_call_and_not_within(
    tmp_path: Path, stream: bool, special: tuple[str, ...]
) -> None:
    first = ["Look. ", "<tool_call>", NESTED[:20], NESTED[20:]]
    script = [*first, "</tool_call>", f"<tool_call>{OSLO}</tool_call>", " more"]
    app = scripted(tmp_path, script, special)
    wanted = '{"city": "</tool_call><tool_call>{}"}'
    content, calls, reason, tokens = written(app, stream, parallel_tool_calls=False)
    assert (content, calls, reason, tokens) == ("Look. ", [wanted], "tool_calls", len(first))
    content, calls, reason, tokens = written(app, stream)
    assert (content, calls, reason) == ("Look. more", [wanted, '{"city": "Oslo"}'], "tool_calls")
    assert tokens > len(script)


@pytest.mark.parametrize("special", [(), ALL_TAGS], ids=str)
def test_a_required_call_is_none_of_the_thoughts_that_the_template_opens(
    tmp_path: Path, special: tuple[str, ...]
) -> None:
    app = scripted(tmp_path, ["x"], special, named=True)
    more = {"chat_template_kwargs": {"thinks": True}, "tool_choice": "required", "max_tokens": 200}
    content, calls, _, _ = written(app, False, **more, parallel_tool_calls=False)
    assert (content, len(calls)) == ("", 1)
