"""Conversations: contents and arguments of the template; transformers is the oracle."""

from copy import deepcopy
from typing import Any

import pytest

from nanoinfer.requests.chat import render_chat
from tests.helpers.chats import CHAT, PARTS, THINKING
from tests.helpers.texts import TOKENIZER


@pytest.fixture
def tokenizer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The model's, with THINKING as its template."""
    monkeypatch.setattr(TOKENIZER.hf_tokenizer, "chat_template", THINKING)
    return TOKENIZER.hf_tokenizer


# --- contents --------------------------------------------------------------------------------------------------------


def test_text_parts_are_joined_by_newlines(tokenizer: Any) -> None:
    before = deepcopy(PARTS)
    assert render_chat(tokenizer, PARTS) == render_chat(tokenizer, CHAT)
    assert before == PARTS
    parts = ({"type": "text", "text": "a"}, {"type": "text", "text": ""}, {"type": "text", "text": "b"})
    assert render_chat(tokenizer, [{"role": "user", "content": parts}]) == "user: a\n\nb\nassistant:"


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ({"type": "image_url", "image_url": {"url": "http://x/y.png"}}, r"content\[1\] is of type 'image_url'"),
        ({"text": "no type"}, "type None"),
        ({"type": "text", "text": 5}, r"content\[1\]=.*under 'text'"),
    ],
)
def test_a_part_that_is_no_text_is_refused_by_its_type(tokenizer: Any, part: Any, named: str) -> None:
    messages = [*CHAT, {"role": "user", "content": [{"type": "text", "text": "a"}, part]}]
    with pytest.raises(ValueError, match=rf"^messages\[1\]: .*{named}"):
        render_chat(tokenizer, messages)


def call(arguments: Any) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}


# As Llama 3.1's: content is trimmed, and a message with calls has exactly one.
STRICT = (
    "{% for m in messages %}{% if 'tool_calls' in m %}{% if m.tool_calls | length != 1 %}"
    "{{ raise_exception('one call') }}{% endif %}"
    "{% set arguments = (m.tool_calls[0].function or m.tool_calls[0]).arguments %}"
    "[{{ arguments if arguments is string else arguments | tojson }}]"
    "{% elif 'refusal' in m %}refused{% else %}{{ m.role }}: {{ m.content | trim }}{% endif %};{% endfor %}"
)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": None}, "assistant: "),
        ({"content": None, "tool_calls": []}, "assistant: "),
        ({"tool_calls": []}, "assistant: "),
        ({"content": "a", "tool_calls": None, "refusal": None}, "assistant: a"),
        ({"content": [], "tool_calls": None}, "assistant: "),
        ({"content": None, "tool_calls": [call({})]}, "[{}]"),
        ({"tool_calls": [call({"a": 1})]}, '[{"a": 1}]'),
        ({"tool_calls": ({"name": "f", "arguments": {}},)}, "[{}]"),  # as some templates have it
    ],
    ids=str,
)
def test_none_is_nothing_for_a_template(tokenizer: Any, message: dict[str, Any], text: str) -> None:
    given = {"role": "assistant", **message}
    before = deepcopy(given)
    assert render_chat(tokenizer, [*CHAT, given], {"chat_template": STRICT}) == f"user: Hello!;{text};"
    assert given == before


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"a":"é",  "b": [1]}', '{"a": "é", "b": [1]}'),
        ("", "{}"),
        ({"a": 1}, '{"a": 1}'),
        *((text, text) for text in ("{", "[1]", "null", "5", '{"a": NaN}', '{"a": 3E400}', r'{"a": "\ud800"}')),
        *((text, text) for text in ('{"a": ' + "9" * 5000 + "}", '{"a": ' + "[" * 9999 + "]" * 9999 + "}")),
    ],
    ids=lambda it: str(it)[:20],
)
def test_the_arguments_of_calls_are_objects_where_they_can_be(tokenizer: Any, arguments: Any, shown: str) -> None:
    given = {"role": "assistant", "content": "", "tool_calls": [call(arguments)]}
    before = deepcopy(given)
    assert render_chat(tokenizer, [given], {"chat_template": STRICT}) == f"[{shown}];"
    assert given == before


def test_arguments_are_text_where_the_template_only_takes_that(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSeek's."""
    template = (
        "{% for m in messages %}{% for c in m.tool_calls %}{{ c.id + c.function.arguments }}{% endfor %}{% endfor %}"
    )
    monkeypatch.setattr(tokenizer, "chat_template", template)
    turn = {"role": "assistant", "tool_calls": [call('{"a": [1.10, "é"]}')]}
    assert render_chat(tokenizer, [turn]) == '1{"a": [1.1, "é"]}'


@pytest.mark.parametrize("system", [True, False])
def test_tools_are_in_the_system_message_where_the_template_reads_them_there(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, system: bool
) -> None:
    """Phi-4-mini's."""
    shown = "{% if 'tools' in message %}<|tool|>{{ message['tools'] }}{% endif %};"
    template = "{% for message in messages %}{{ message.content }}" + shown + "{% endfor %}"
    monkeypatch.setattr(tokenizer, "chat_template", template)
    turns = [{"role": "system", "content": "S"}] * system + [{"role": "user", "content": "U"}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert render_chat(tokenizer, turns, {"tools": tools}) == f'{"S" * system}<|tool|>[{{"name": "f"}}];U;'


def test_a_developer_is_the_system_where_the_template_does_not_know_the_role(tokenizer: Any) -> None:
    messages = [{"role": "developer", "content": "Be brief."}, *CHAT]
    assert render_chat(tokenizer, messages) == "system: Be brief.\nuser: Hello!\nassistant:"
    assert messages[0]["role"] == "developer"
    knows = "{% if messages[0].role == 'developer' %}{{ messages[0].role }}{% endif %}"
    assert render_chat(tokenizer, messages, {"chat_template": knows}) == "developer"


# --- arguments of the template ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"enable_thinking": False},
        {"enable_thinking": True},
        {"add_generation_prompt": False},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
        {"chat_template": "{{ messages[0].content }}{{ more }}", "more": "!"},
        {"something_else": 1},  # the template does not read it
    ],
)
def test_arguments_reach_the_template_as_in_transformers(tokenizer: Any, given: dict[str, Any]) -> None:
    expected = {"add_generation_prompt": True, **given}
    assert render_chat(tokenizer, CHAT, given) == tokenizer.apply_chat_template(CHAT, tokenize=False, **expected)


def test_a_last_turn_may_go_on(tokenizer: Any) -> None:
    started = [*CHAT, {"role": "assistant", "content": "I am"}]
    text = render_chat(tokenizer, started, {"continue_final_message": True})
    assert text == "user: Hello!\nassistant: I am"


def test_a_template_given_with_the_call_serves_a_model_that_has_none(tokenizer: Any) -> None:
    tokenizer.chat_template = None
    assert render_chat(tokenizer, CHAT, {"chat_template": "{{ messages[0].content }}"}) == "Hello!"
    with pytest.raises(ValueError, match="no chat template"):
        render_chat(tokenizer, CHAT, {"enable_thinking": False})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tokenize": True}, "tokenize: chat sets it"),
        ({"max_length": 5}, "max_length"),
        ([("a", 1)], "must be a mapping"),
    ],
)
def test_an_argument_that_is_none_is_refused_by_name(tokenizer: Any, given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^chat_template_kwargs.*{message}"):
        render_chat(tokenizer, CHAT, given)


@pytest.mark.parametrize(
    ("template", "given", "message"),
    [
        (THINKING, "{% for m in messages %}", r"^chat_template_kwargs: chat_template: is malformed in line 1: \w+"),
        ("{% for m in messages %}", None, r"^the model's chat template: is malformed in line 1: \w+"),
        (THINKING, "{{ raise_exception('no') }}", "^messages: the given chat template refuses them: no$"),
        ("{{ raise_exception('no') }}", None, "^messages: the model's chat template refuses them: no$"),
    ],
)
def test_the_template_that_fails_is_named(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, template: str, given: str | None, message: str
) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", template)
    with pytest.raises(ValueError, match=message):
        render_chat(tokenizer, CHAT, None if given is None else {"chat_template": given})
