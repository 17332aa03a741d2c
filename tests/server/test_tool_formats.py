"""Tools with models of every family: what the model writes, or must write, becomes calls, whole and in streams."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from nanoinfer import LLM
from tests.helpers.scripted_checkpoint import make
from tests.helpers.servers import ask, patient_app, running
from tests.server.test_tools import NAMED, TWO, answered, written
from tests.unit.requests.test_call_formats import ALL_END, FORMATS, ONE, ONE_END, SEP, TABS, TEMPLATES

NEWLINE = '{{ "\\n" }}'  # the scripts begin behind it
ARGUMENTS = '{"warm": true}'
JSON = '{"name": "weather", "arguments": {"warm": true}}'
SCRIPTS = {  # in pieces, as tokens: a tag is one
    "hermes": ["<tool_call>", '{"name": "wea', 'ther", "arguments": {"wa', 'rm": true}', "}", "</tool_call>"],
    "qwen3_coder": [
        "<tool_call>",
        "\n<function=wea",
        "ther>\n<param",
        "eter=warm>\ntr",
        "ue\n</parameter>\n</func",
        "tion>\n",
        "</tool_call>",
    ],
    "deepseek_v3": [TABS, ONE, "function", SEP, "weather\n``", '`json\n{"warm": ', "true}\n```", ONE_END, ALL_END],
    "deepseek_v31": [TABS, ONE, "weather", SEP, '{"warm": ', "true}", ONE_END, ALL_END],
    "mistral": ["[TOOL_CALLS]", ' [{"name": "weather", "argu', 'ments": {"warm": true}}', "]"],
    "mistral_v11": ["[TOOL_CALLS]", "wea", "ther", "[ARGS]", '{"warm": ', "true}"],
    "phi4_mini": ["<|tool_call|>", "[", JSON[:20], JSON[20:], "] ", "<|/tool_call|>"],
    "gemma3": ["```tool", "_code\nwea", "ther(warm=Tr", "ue)\n", "```"],
    "pythonic": ["[wea", "ther(warm=Tr", "ue)]"],
    "llama3_json": ["<|python_tag|>", '{"name": "weather", "parame', 'ters": {"warm": true}}'],
    "gptoss": [
        "<|channel|>",
        "commentary to=functions.weather ",
        "<|constrain|>",
        "json",
        "<|message|>",
        '{"warm": ',
        "true}",
        "<|call|>",
    ],
}


def served(tmp_path: Path, name: str, is_special: bool, before: tuple[str, ...] = ()) -> Any:
    """A server whose model writes SCRIPTS[name], perhaps with the format's tags as special tokens."""
    template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}{# " + TEMPLATES[name].replace("#}", "") + " #}" + NEWLINE
    )
    tags = ("<|im_start|>", *(tag for tag in FORMATS[name].tags if tag not in ("```", "<function=", "functools")))
    script = [*before, *SCRIPTS[name]]
    path = make(tmp_path / "model", script, template, tags, tags if is_special else (), named=False)
    return patient_app(LLM(path, max_total_tokens=1024))


@pytest.mark.parametrize("is_special", [True, False])
@pytest.mark.parametrize("name", FORMATS)
def test_what_a_model_of_any_family_writes_becomes_a_call(tmp_path: Path, name: str, is_special: bool) -> None:
    app = served(tmp_path, name, is_special)
    for stream in (False, True):
        for parallel in (True, False):
            found = answered(app, stream, tools=TWO, parallel_tool_calls=parallel)
            assert found[:4] == ("", "", [ARGUMENTS], "tool_calls")
    content, calls, reason, _ = written(app, False, tool_choice="none")  # its tags mean nothing then
    assert (calls, reason) == ([], "stop")
    assert ("warm" in content) or name == "gptoss"


@pytest.mark.parametrize("is_special", [True, False])
@pytest.mark.parametrize("name", FORMATS)
def test_a_model_of_any_family_can_be_made_to_call(tmp_path: Path, name: str, is_special: bool) -> None:
    app = served(tmp_path, name, is_special)
    for choice, reason in (("required", "tool_calls"), (NAMED, "stop")):
        for stream in (False, True):
            more = {"tools": TWO, "tool_choice": choice, "temperature": 1, "seed": 2, "max_tokens": 400}
            found = answered(app, stream, **more, parallel_tool_calls=False)
            assert found[:2] == ("", "")
            assert found[3] == reason
            (arguments,) = found[2]
            assert json.loads(arguments).keys() in ({"warm"}, {"zone"})


@pytest.mark.parametrize("name", ["hermes", "mistral"])
def test_openais_client_puts_the_pieces_together(tmp_path: Path, name: str) -> None:
    with running(served(tmp_path, name, True, before=("Let me ", "look."))) as up:
        client = openai.OpenAI(base_url=f"{up.url}/v1", api_key="none", max_retries=0)
        model = client.models.list().data[0].id
        asked: Any = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "tools": TWO, "temperature": 0}
        with client.chat.completions.stream(**asked) as stream:
            pieces = [event.arguments_delta for event in stream if event.type == "tool_calls.function.arguments.delta"]
            message = stream.get_final_completion().choices[0].message
        assert message.content == "Let me look."
        assert message.tool_calls is not None
        (call,) = message.tool_calls
        assert (call.function.name, call.function.arguments) == ("weather", ARGUMENTS)
        assert "".join(pieces) == ARGUMENTS
        assert len(call.id) == (9 if name == "mistral" else 29)
        turns = [*asked["messages"], message, {"role": "tool", "tool_call_id": call.id, "content": "21"}]
        assert client.chat.completions.create(**asked | {"messages": turns, "max_tokens": 1}).choices


GOLDEN = [  # deltas of a stream, without the call's id; a token may come in an event of its own, or with the next
    {"role": "assistant", "content": "", "refusal": None},
    {"content": "Let me look."},
    {"tool_calls": [{"index": 0, "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}]},
    {},
]


def test_the_events_of_a_stream_with_a_call(tmp_path: Path) -> None:
    app = served(tmp_path, "hermes", True, before=("Let me ", "look."))
    body = {"model": app.state.service.base_name, "messages": [{"role": "user", "content": "Hi"}], "tools": TWO}
    answer = ask(app, "POST", "/v1/chat/completions", json=body | {"stream": True, "temperature": 0})
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n")[:-2]]
    deltas = list[Any]()
    for delta in (event["choices"][0]["delta"] for event in events):
        call, before = delta.get("tool_calls", [{}])[0], deltas[-1] if deltas else {}
        if delta.keys() == before.keys() == {"content"}:
            before["content"] += delta["content"]
        elif call and call.pop("id", None) is None:
            assert call.keys() == {"index", "function"}
            before["tool_calls"][0]["function"]["arguments"] += call["function"]["arguments"]
        else:
            deltas.append(delta)
    assert deltas == GOLDEN
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_parser_can_be_given_by_name(tmp_path: Path) -> None:
    template = "{% if tools %}{% endif %}{{ messages[0].content }}" + NEWLINE
    path = make(tmp_path / "model", SCRIPTS["pythonic"], template)
    asked = {"model": str(path), "messages": [{"role": "user", "content": "Hi"}], "tools": TWO}
    for given, status in (({}, 400), ({"tool_call_parser": "pythonic"}, 200)):
        app = patient_app(LLM(path, max_total_tokens=1024), served_model_name=str(path), **given)
        answer = ask(app, "POST", "/v1/chat/completions", json=asked | {"temperature": 0})
        assert answer.status_code == status
        assert ("--tool-call-parser" in answer.text) == (status == 400)
    assert answer.json()["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == ARGUMENTS
    with pytest.raises(ValueError, match="tool_call_parser='hermit': must be one of gptoss, qwen3_coder"):
        patient_app(LLM(path), tool_call_parser="hermit")


def test_a_template_that_shows_no_tools_is_refused(tmp_path: Path) -> None:
    path = make(tmp_path / "model", ["x"], "{{ messages[0].content }}" + NEWLINE)
    app = patient_app(LLM(path, max_total_tokens=1024), tool_call_parser="hermes")
    body = {"model": app.state.service.base_name, "messages": [{"role": "user", "content": "Hi"}], "tools": TWO}
    answer = ask(app, "POST", "/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "tools: this model's chat template does not show tools to the model"
