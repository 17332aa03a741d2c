"""Reasoning: told apart from the answer, counted, before grammars, and handed back to the template."""

import json
from pathlib import Path
from typing import Any

import pytest

from nanoinfer import LLM
from tests.helpers.scripted_checkpoint import make
from tests.helpers.servers import ask, patient_app, sent_events
from tests.server.test_tools import QWEN, TWO, answered

THOUGHT = ["Well", ", it ", "is </thin\n", "</think>", "\n\n", "War", "m."]
GPT_OSS = (
    "{% if tools %}{% endif %}{{ messages[0].content }}<|start|>assistant"
    "{% if false %}<|channel|>analysis<|message|>{% endif %}"
)
CHANNELS = ["<|channel|>", "analysis", "<|message|>", "Well.", "<|end|>", "<|start|>", "assistant"]
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


def served(tmp_path: Path, script: list[str], template: str = QWEN, special: bool = False, start: str = "\n") -> Any:
    tags = ["<|im_start|>", "<tool_call>", "</tool_call>", "<think>", "</think>"]
    if template == GPT_OSS:
        tags = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>", "<|call|>", "<|return|>"]
    path = make(tmp_path / "model", script, template, tags, tags if special else (), named=False, start=start)
    return patient_app(LLM(path, max_total_tokens=1024))


def chat(app: Any, stream: bool = False, **more: Any) -> Any:
    body = {"model": app.state.service.base_name, "messages": [{"role": "user", "content": "w5"}], "stream": stream}
    options = {"stream_options": {"include_usage": True}} if stream else {}
    answer = ask(
        app, "POST", "/v1/chat/completions", json={**body, "temperature": 0, "max_tokens": 60, **options, **more}
    )
    assert answer.status_code == 200, answer.text
    return sent_events(answer.text) if stream else answer.json()


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("opened", [False, True])
def test_a_thought_is_no_content_and_is_counted_in_tokens(tmp_path: Path, opened: bool, special: bool) -> None:
    app = served(tmp_path, THOUGHT if opened else ["<think>", "\n\n\n", *THOUGHT], special=special)
    tokens = THOUGHT.index("</think>") + (1 if opened else 3)
    more: dict[str, Any] = {"chat_template_kwargs": {"thinks": opened}}
    made = chat(app, **more)
    message = made["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("Well, it is </thin", "Warm.")
    assert message["reasoning"] == message["reasoning_content"]
    assert made["usage"]["completion_tokens_details"] == {"reasoning_tokens": tokens}
    *events, usage = chat(app, stream=True, n=2, **more)
    for i in range(2):
        deltas = [event["choices"][0]["delta"] for event in events if event["choices"][0]["index"] == i]
        for name in ("reasoning", "reasoning_content"):
            assert "".join(delta.get(name, "") for delta in deltas) == "Well, it is </thin"
        assert "".join(delta.get("content") or "" for delta in deltas) == "Warm."
        assert not [delta for delta in deltas if delta.get("content") and "reasoning" in delta]
    assert usage["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2 * tokens}
    assert chat(app, max_tokens=3, **more)["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}


@pytest.mark.parametrize("special", [False, True])
def test_channels_are_told_apart(tmp_path: Path, special: bool) -> None:
    app = served(tmp_path, [*CHANNELS, "<|channel|>final<|message|>So."], GPT_OSS, special, start="t")
    made = chat(app)
    message = made["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("Well.", "So.")
    assert made["usage"]["completion_tokens_details"] == {"reasoning_tokens": CHANNELS.index("<|end|>") + 1}


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("family", ["think", "opened", "channels"])
def test_a_schema_or_a_call_holds_behind_the_thought(tmp_path: Path, stream: bool, special: bool, family: str) -> None:
    """The model thinks as it likes to. Then it goes on as it must."""
    more: dict[str, Any] = {}
    if family == "channels":
        app = served(tmp_path, CHANNELS, GPT_OSS, special, start="t")
    else:
        before = [] if family == "opened" else ["<think>"]
        app = served(tmp_path, [*before, "Well.", "</think>"], special=special)
        more = {"chat_template_kwargs": {"thinks": family == "opened"}}
    one = {"tools": TWO, "parallel_tool_calls": False, "max_tokens": 200}
    reasoning, content, calls, reason, _ = answered(app, stream, tools=None, response_format=FORM, **more)
    assert (reasoning, json.loads(content)["a"] in (1, 2), calls, reason) == ("Well.", True, [], "stop")
    reasoning, content, calls, reason, _ = answered(app, stream, tool_choice="required", **one, **more)
    assert (reasoning, content, len(calls), reason) == ("Well.", "", 1, "tool_calls")
    reasoning, content, calls, reason, _ = answered(app, stream, response_format=FORM, **one, **more)
    assert reasoning == "Well."
    assert json.loads(content or calls[0])


def test_with_tools_and_a_response_format_either_comes(tmp_path: Path) -> None:
    app, seen = served(tmp_path, ["x"]), set[str]()
    for seed in range(12):
        more = {"temperature": 2, "seed": seed, "tools": TWO, "max_tokens": 400, "response_format": FORM}
        _, content, calls, reason, _ = answered(app, False, **more, parallel_tool_calls=False)
        if reason == "length":
            continue
        assert (reason == "tool_calls", not content) == (bool(calls), bool(calls))
        assert json.loads(content)["a"] in (1, 2) if content else json.loads(calls[0])
        seen.add(reason)
    assert seen == {"stop", "tool_calls"}


def test_reasoning_in_the_history_and_what_is_asked_of_it_reach_the_template(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{{ m.reasoning_content }}|{{ m.reasoning }}|{% endfor %}"
        "{{ messages[0].thinking if messages[0].tool_calls }}"
        "{{ reasoning_effort }},{{ enable_thinking }}{% if false %}<think>{% endif %}"
    )
    app = served(tmp_path, ["x"], template)

    def prompt(**more: Any) -> str:
        made = chat(app, **more, return_token_ids=True, max_tokens=1)
        return str(app.state.service.tokenizer.decode(made["choices"][0]["prompt_token_ids"]))

    turn: dict[str, Any] = {"role": "assistant", "content": "c"}
    assert prompt(messages=[turn | {"reasoning": "a"}]) == "a||,"
    assert prompt(messages=[turn | {"reasoning_content": "b"}]) == "b||,"
    assert prompt(messages=[turn | {"reasoning": "a", "reasoning_content": "b"}]) == "b||,"
    calls = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    turn |= {"reasoning": "a", "tool_calls": calls}
    assert prompt(messages=[turn]) == "a||,"  # gpt-oss takes thoughts, or text, beside calls
    assert prompt(messages=[turn | {"content": None}]) == "a||a,"
    assert prompt(reasoning_effort="low") == "||low,"
    assert prompt(reasoning_effort="none") == "||none,False"
    assert prompt(reasoning_effort="low", chat_template_kwargs={"enable_thinking": False}) == "||low,False"
