"""Tools: rendered by a template that knows them, and calls found in what the model writes."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from nanoinfer import LLM
from nanoinfer.server.tools import _warn_of_grammar
from tests.helpers.servers import patient_app, running
from tests.helpers.tiny_llm import make_llm_model, tiny_llm
from tests.helpers.waiting import HANG_S
from tests.server.test_lock import ask

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>'
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "of a city",
            "parameters": {
                "type": "object",
                "properties": {"warm": {"type": "boolean"}},
                "required": ["warm"],
                "additionalProperties": False,
            },
        },
    }
]
NAMED = {"type": "function", "function": {"name": "weather"}}
# As Qwen's: tools are rendered, and calls are written between tags. The words are those of the tiny tokenizer.
TEMPLATE = (
    "{% if tools %}w3 {% for tool in tools %}{{ tool.function.name }} {% endfor %}{% endif %}"
    "{% for message in messages %}{{ message.content }} {% for call in message.tool_calls or [] %}"
    '<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments.city }}}</tool_call> '
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}w1{% endif %}"
)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Any:
    llm = tiny_llm(make_llm_model(tmp_path_factory.mktemp("tiny")))
    llm.tokenizer.hf_tokenizer.chat_template = TEMPLATE
    return patient_app(llm)


def chat(app: Any, **more: Any) -> Any:
    body = {
        "model": app.state.service.base_name,
        "messages": [{"role": "user", "content": "w5"}],
        "max_tokens": 4,
        **more,
    }
    return ask(app, "POST", "/v1/chat/completions", json=body)


def test_tools_are_rendered_unless_none_may_be_called(app: Any) -> None:
    def prompt(**more: Any) -> int:
        answer = chat(app, temperature=0, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()["usage"]["prompt_tokens"]

    assert prompt(tools=TOOLS) == prompt() + 2
    assert prompt(tools=TOOLS, tool_choice="auto", parallel_tool_calls=True) == prompt() + 2
    assert prompt(tools=TOOLS, tool_choice="none") == prompt()
    assert prompt(tools=[]) == prompt()


def test_the_calls_of_earlier_turns_are_rendered_as_objects(app: Any) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "w7", "arguments": '{"city": "w9"}'}}
    turns = [
        {"role": "user", "content": "w5"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "w4", "tool_call_id": "1"},
    ]
    assert chat(app, messages=turns, tools=TOOLS).status_code == 200
    for no_object in ("{", "[1]"):
        call["function"] = {"name": "w7", "arguments": no_object}
        assert chat(app, messages=turns).status_code == 200, "the template gets the text, which has no city"


@pytest.mark.parametrize(
    "message",
    [
        {"content": None},
        {"content": None, "tool_calls": []},
        {"content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
        {"tool_calls": [{"type": "function", "function": {"name": "f", "arguments": '{"city": "w9"}'}}]},
        {"tool_calls": []},
    ],
    ids=str,
)
def test_a_conversation_is_the_prompt_that_chat_makes_of_it(app: Any, message: dict[str, Any]) -> None:
    turns = [
        {"role": "developer", "content": "w4"},
        {"role": "user", "content": "w5"},
        {"role": "assistant", **message},
        {"role": "user", "content": "w6"},
    ]
    answer = chat(app, messages=turns, return_token_ids=True)
    assert answer.status_code == 200, answer.text
    wanted = app.state.service.tokenizer.encode_chat(turns)
    assert answer.json()["choices"][0]["prompt_token_ids"] == wanted


@pytest.fixture(scope="module")
def story() -> Any:
    """The bundled model with a template that knows tools; a grammar makes it write what a test wants."""
    llm = LLM("story", max_total_tokens=1024)
    tokenizer = llm.tokenizer.hf_tokenizer
    tokenizer.chat_template += '{% if false and tools %}<tool_call>{"arguments": 1}{% endif %}'
    return patient_app(llm)


# As a client may send tools, and as the model is shown them: see OpenAI's guides, and transformers' get_json_schema.
PARAMETERS = {"type": "object", "properties": {"strict": {"default": None, "type": ["string", "null"]}}}
SENT = [
    {"type": "function", "function": {"name": "a", "description": "é <b>", "parameters": PARAMETERS, "strict": True}},
    {"function": {"parameters": PARAMETERS, "description": None, "name": "b"}, "type": "function"},
    {"function": {"name": "c", "strict": None}},
]
SHOWN = [
    {"type": "function", "function": {"name": "a", "description": "é <b>", "parameters": PARAMETERS}},
    {"function": {"parameters": PARAMETERS, "name": "b"}, "type": "function"},
    {"function": {"name": "c"}},
]


def test_tools_are_shown_as_they_were_sent_without_strict(story: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    service = story.state.service
    tokenizer = service.tokenizer.hf_tokenizer
    monkeypatch.setattr(tokenizer, "chat_template", tokenizer.chat_template + "{{ tools | tojson }}")
    turns = [{"role": "user", "content": "Hi"}]
    answer = ask(story, "POST", "/tokenize", json={"messages": turns, "tools": SENT})
    made = tokenizer.decode(answer.json()["tokens"], skip_special_tokens=False)
    wanted = tokenizer.apply_chat_template(turns, tools=SHOWN, tokenize=False, add_generation_prompt=True)
    assert made == wanted


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("before", "after"), [("", ""), ("Let me look. ", "")])
def test_what_the_model_writes_becomes_calls(story: Any, stream: bool, before: str, after: str) -> None:
    answer = chat(story, tools=TOOLS, stream=stream, max_tokens=200, guided_choice=[before + CALL + after])
    assert answer.status_code == 200, answer.text
    if not stream:
        message = answer.json()["choices"][0]["message"]
        calls, content = message["tool_calls"], message["content"] or ""
        reason = answer.json()["choices"][0]["finish_reason"]
        assert "index" not in calls[0]
    else:
        events = [json.loads(event.removeprefix("data: ")) for event in answer.text.split("\n\n")[:-2]]
        deltas = [event["choices"][0]["delta"] for event in events]
        calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
        content = "".join(delta.get("content") or "" for delta in deltas)
        reason = events[-1]["choices"][0]["finish_reason"]
        assert calls[0]["index"] == 0
    assert content == before
    assert [call["function"]["name"] for call in calls] == ["weather"]
    assert json.loads(calls[0]["function"]["arguments"]) == {"city": "Oslo", "days": 3}
    assert calls[0]["id"].startswith("call_")
    assert reason == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_no_client_could_read_is_text(story: Any, stream: bool) -> None:
    call = r'<tool_call>{"name": "weather", "arguments": {"city": "\ud800"}}</tool_call>'
    answer = chat(story, tools=TOOLS, stream=stream, max_tokens=200, guided_choice=[call])
    assert answer.status_code == 200, answer.text
    if stream:
        events = [json.loads(event.removeprefix("data: ")) for event in answer.text.split("\n\n")[:-2]]
        content = "".join(event["choices"][0]["delta"].get("content") or "" for event in events)
        reason = events[-1]["choices"][0]["finish_reason"]
    else:
        content = answer.json()["choices"][0]["message"]["content"]
        reason = answer.json()["choices"][0]["finish_reason"]
    assert (content, reason) == (call, "stop")


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "weather", "x": 1}}}, "tool_choice"),
        ({"tool_choice": ["weather"]}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "required", "tools": TOOLS * 2}, "tools"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": NAMED, "guided_regex": "a"}, "guided_regex"),
        ({"tool_choice": "required", "guided_json": {}}, "guided_json"),
        ({"tool_choice": "required", "guided_choice": ["a"]}, "guided_choice"),
        ({"tool_choice": "required", "guided_grammar": "start: /a/"}, "guided_grammar"),
        ({"tool_choice": "required", "structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
        ({"tool_choice": "required", "ebnf": "start: /a/"}, "ebnf"),
        ({"parallel_tool_calls": False, "min_tokens": 2}, "min_tokens"),
        ({"tools": [{"type": "retrieval", "function": {"name": "x"}}]}, "tools"),
        ({"tools": TOOLS * 129}, "tools"),
    ],
)
def test_wrong_tools(app: Any, more: dict[str, Any], param: str) -> None:
    answer = chat(app, **{"tools": TOOLS, **more})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


# --- calls that must come, and calls that may come only once ---------------------------------------------------------


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TWO = [tool("weather", warm={"type": "boolean"}), tool("time", zone={"enum": ["Oslo", "Rome"]})]
ARGUMENTS = {"weather": [{"warm": True}, {"warm": False}], "time": [{"zone": "Oslo"}, {"zone": "Rome"}]}


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    llm = LLM("story", max_total_tokens=4096)
    llm.tokenizer.hf_tokenizer.chat_template += '{% if false and tools %}<tool_call>{"arguments": 1}{% endif %}'
    with running(patient_app(llm)) as up:
        yield openai.OpenAI(base_url=f"{up.url}/v1", api_key="none", max_retries=0, timeout=HANG_S)


Made = tuple[str | None, list[tuple[str, Any]], str]  # content, calls, finish reason


def made_by(client: openai.OpenAI, stream: bool, **more: Any) -> Made:
    asked = {"model": "story", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 300, **more}
    if not stream:
        (choice,) = client.chat.completions.create(**asked).choices
        calls = [(each.function.name, json.loads(each.function.arguments)) for each in choice.message.tool_calls or []]
        assert choice.stop_reason is None
        return choice.message.content, calls, choice.finish_reason
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**asked, stream=True)]
    content, calls = None, []
    for chunk in chunks:
        if chunk.delta.content is not None:
            content = (content or "") + chunk.delta.content
        for call in chunk.delta.tool_calls or []:
            assert call.index == len(calls)
            calls.append((call.function.name, json.loads(call.function.arguments)))
    assert chunks[-1].stop_reason is None
    return content, calls, chunks[-1].finish_reason


@pytest.mark.parametrize("stream", [False, True])
def test_with_required_what_comes_out_is_calls_that_the_schemas_allow(client: openai.OpenAI, stream: bool) -> None:
    names = set()
    for seed in range(3):
        content, calls, reason = made_by(client, stream, tools=TWO, tool_choice="required", seed=seed, temperature=1.5)
        assert (content, reason) == (None, "tool_calls")
        assert calls
        for name, arguments in calls:
            assert arguments in ARGUMENTS[name]
            names.add(name)
    assert names == {"weather", "time"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_named_function_is_called_once(client: openai.OpenAI, stream: bool) -> None:
    for seed in range(2):
        content, calls, reason = made_by(client, stream, tools=TWO, tool_choice=NAMED, seed=seed, temperature=2)
        assert (content, reason) == (None, "stop"), "OpenAI's: the model had no choice"
        assert len(calls) == 1
        assert calls[0][0] == "weather"
        assert calls[0][1] in ARGUMENTS["weather"]


@pytest.mark.parametrize("stream", [False, True])
def test_required_without_parallel_calls_is_one_call(client: openai.OpenAI, stream: bool) -> None:
    several = 0
    for seed in range(3):
        more = {"tools": TWO, "tool_choice": "required", "seed": seed, "temperature": 2}
        several += len(made_by(client, stream, **more)[1]) > 1
        assert len(made_by(client, stream, **more, parallel_tool_calls=False)[1]) == 1
    assert several, "without it, there are several"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("shown", [False, True])
@pytest.mark.parametrize("before", ["", "Let me look. "])
def test_without_parallel_calls_the_first_call_that_comes_is_the_end(
    client: openai.OpenAI, stream: bool, shown: bool, before: str
) -> None:
    extra = {"guided_choice": [f"{before}{CALL}\n{CALL}"], "include_stop_str_in_output": shown}
    both = made_by(client, stream, tools=TWO, extra_body=extra)
    first = made_by(client, stream, tools=TWO, extra_body=extra, parallel_tool_calls=False)
    assert [len(calls) for _, calls, _ in (both, first)] == [2, 1]
    assert first[0] == both[0]
    assert first[0] in (before, None if not stream else "")
    assert first[2] == "tool_calls"
    assert first[1] == [("weather", {"city": "Oslo", "days": 3})]


def test_without_parallel_calls_plain_text_stays_what_it_is(client: openai.OpenAI) -> None:
    asked = {"tools": TWO, "temperature": 0, "max_tokens": 12}
    assert made_by(client, False, **asked) == made_by(client, False, **asked, parallel_tool_calls=False)
    assert made_by(client, False, **asked, parallel_tool_calls=False, stop="gentle")[2] == "stop"


def test_a_call_that_is_cut_off_is_text(client: openai.OpenAI) -> None:
    content, calls, reason = made_by(client, False, tools=TWO, tool_choice="required", max_tokens=8)
    assert (calls, reason) == ([], "length")
    assert content.startswith("<tool_call>")


def test_a_wrong_name_or_schema_is_the_requests_fault(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="no function 'wether' in tools; did you mean 'weather'") as caught:
        made_by(client, False, tools=TWO, tool_choice={"type": "function", "function": {"name": "wether"}})
    assert caught.value.param == "tool_choice"
    wrong = [tool("weather", warm={"not": {}})]
    with pytest.raises(openai.BadRequestError, match="tools: cannot be compiled") as caught:
        made_by(client, False, tools=wrong, tool_choice="required")
    assert caught.value.param == "tools"


@pytest.mark.parametrize("stream", [False, True])
def test_a_required_call_may_have_the_closing_tag_in_an_argument(client: openai.OpenAI, stream: bool) -> None:
    tools = [tool("say", text={"const": "</tool_call><think>"})]
    for more in ({}, {"parallel_tool_calls": False}):
        content, calls, _ = made_by(client, stream, tools=tools, tool_choice="required", seed=1, **more)
        assert content is None
        assert dict(calls) == {"say": {"text": "</tool_call><think>"}}


def test_the_log_says_once_that_a_grammar_lets_no_tool_be_called(story: Any, caplog: pytest.LogCaptureFixture) -> None:
    _warn_of_grammar.cache_clear()
    form = {"response_format": {"type": "json_object"}}
    with caplog.at_level("WARNING", logger="nanoinfer.server"):
        for more in ({}, {"tools": TOOLS, "tool_choice": "none", **form}, form, {"tools": TOOLS}):
            assert chat(story, **more).status_code == 200
        assert not caplog.records
        for _ in range(2):
            assert chat(story, tools=TOOLS, **form).status_code == 200
    (record,) = caplog.records
    assert "response_format" in record.getMessage()
