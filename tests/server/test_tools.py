"""Tools: rendered by a template that knows them, and calls found in what the model writes."""

import json
import shutil
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import openai
import pytest

from nanoinfer import LLM
from nanoinfer.requests.chat import render_chat
from nanoinfer.requests.tokenizer import Tokenizer
from nanoinfer.requests.tool_calls.registry import format_of, reasoning_of, renders_tools
from tests.helpers.real_tokenizers import real_tokenizer
from tests.helpers.scripted_checkpoint import make
from tests.helpers.servers import ask, patient_app, running, sent_events
from tests.helpers.tiny_llm import make_llm_model, tiny_llm
from tests.helpers.waiting import HANG_S
from tests.server.conftest import greedy

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>'


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool("weather", warm={"type": "boolean"})]
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
    body = {"model": app.state.service.base_name, "messages": [{"role": "user", "content": "w5"}], "max_tokens": 4}
    return ask(app, "POST", "/v1/chat/completions", json=body | more)


def test_tools_are_rendered_unless_none_may_be_called(app: Any) -> None:
    def prompt(**more: Any) -> int:
        answer = chat(app, temperature=0, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()["usage"]["prompt_tokens"]

    assert prompt(tools=TOOLS) == prompt() + 2
    assert prompt(tools=TOOLS, tool_choice="auto", parallel_tool_calls=True) == prompt() + 2
    assert prompt(tools=TOOLS, tool_choice="none") == prompt()
    assert prompt(tools=[]) == prompt()


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


# As a client may send tools, and as the model is shown them, in the order that it was trained on: see OpenAI's guides,
# and transformers' get_json_schema.
PARAMETERS = {"type": "object", "properties": {"strict": {"default": None, "type": ["string", "null"]}}}
SENT = [
    {"type": "function", "function": {"name": "a", "description": "é <b>", "parameters": PARAMETERS, "strict": True}},
    {"function": {"parameters": PARAMETERS, "description": None, "name": "b"}, "type": "function"},
    {"function": {"name": "c", "strict": None}},
]
SHOWN = [
    {"type": "function", "function": {"name": "a", "description": "é <b>", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "b", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "c"}},
]


def test_tools_are_shown_in_openais_order_without_strict(story: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    service = story.state.service
    tokenizer = service.tokenizer.hf_tokenizer
    monkeypatch.setattr(tokenizer, "chat_template", tokenizer.chat_template + "{{ tools | tojson }}")
    turns = [{"role": "user", "content": "Hi"}]
    answer = ask(story, "POST", "/tokenize", json={"messages": turns, "tools": SENT})
    made = tokenizer.decode(answer.json()["tokens"], skip_special_tokens=False)
    wanted = tokenizer.apply_chat_template(turns, tools=SHOWN, tokenize=False, add_generation_prompt=True)
    assert made == wanted


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("before", ["", "Let me look. "])
def test_what_the_model_writes_becomes_calls(story: Any, stream: bool, before: str) -> None:
    more = {"max_tokens": 200, "temperature": 1, "guided_choice": [before + CALL]}
    content, (arguments,), reason, _ = written(story, stream, **more)
    assert (content, json.loads(arguments), reason) == (before, {"city": "Oslo", "days": 3}, "tool_calls")


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "required", "tools": TOOLS * 2}, "tools"),
        ({"tool_choice": "required", "guided_json": {"type": "object"}}, "tools"),
        ({"tool_choice": NAMED, "guided_regex": "a"}, "tools"),
        ({"tool_choice": "required", "structured_outputs": {"regex": "a"}}, "tools"),
        ({"parallel_tool_calls": False, "min_tokens": 2}, "min_tokens"),
        ({"tools": [{"type": "retrieval", "function": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": TOOLS * 129}, "tools"),
    ],
)
def test_wrong_tools(app: Any, more: dict[str, Any], param: str) -> None:
    answer = chat(app, **{"tools": TOOLS, **more})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


# --- calls that must come, and calls that may come only once ---------------------------------------------------------


TWO = [tool("weather", warm={"type": "boolean"}), tool("time", zone={"enum": ["Oslo", "Rome"]})]
ARGUMENTS = {"weather": {'{"warm": true}', '{"warm": false}'}, "time": {'{"zone": "Oslo"}', '{"zone": "Rome"}'}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", [None, {"type": "json_object"}], ids=["", "form"])
@pytest.mark.parametrize(("choice", "reason"), [("required", "tool_calls"), (NAMED, "stop")], ids=["required", "named"])
def test_what_must_be_called_is_calls_that_the_schemas_allow(
    story: Any, stream: bool, form: Any, choice: Any, reason: str
) -> None:
    """A call that the client has named is no reason of its own: the model had no choice. A `response_format` is about text,
    and there is none: instructor asks for both."""
    found = set()
    for seed in range(3):
        more = {"tools": TWO, "tool_choice": choice, "seed": seed, "temperature": 1.5, "max_tokens": 300}
        more["response_format"] = form
        content, calls, ended, _ = written(story, stream, **more)
        assert (content, ended) == ("", reason)
        assert len(calls) >= 1 if choice == "required" else len(calls) == 1
        found |= {json.dumps(json.loads(each)) for each in calls}
        assert len(written(story, stream, **more, parallel_tool_calls=False)[1]) == 1
    assert found <= ARGUMENTS["weather"] | (ARGUMENTS["time"] if choice == "required" else set())
    assert choice == NAMED or len(found) > 1


def test_a_call_that_is_cut_off_is_text(story: Any) -> None:
    content, calls, reason, _ = written(story, False, tools=TWO, tool_choice="required", max_tokens=8)
    assert (calls, reason) == ([], "length")
    assert content.startswith("<tool_call>")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("stop", "reason"), [("3", "stop"), ("</tool", "tool_calls")])
def test_a_call_that_a_stop_string_cuts_off_is_no_reason(story: Any, stream: bool, stop: str, reason: str) -> None:
    more = {"max_tokens": 200, "temperature": 1, "guided_choice": [CALL], "stop": [stop]}
    _, (arguments,), ended, _ = written(story, stream, **more)
    assert ended == reason
    assert arguments == '{"city": "Oslo", "days": ' + ("3}" if reason == "tool_calls" else "")


# --- calls written in other ways: tags that are special tokens, thoughts, tags within arguments ---

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
    added = ("<|im_start|>", "<pad>", *ALL_TAGS)
    path = make(tmp_path / "model", script, QWEN, added, ("<|im_start|>", "<pad>", *special), named)
    return patient_app(LLM(path, max_total_tokens=1024))


def written(app: Any, stream: bool, **more: Any) -> tuple[str, list[str], str, int]:
    """Content, arguments of the calls, finish reason and number of tokens of an answer."""
    return answered(app, stream, **more)[1:]


def answered(app: Any, stream: bool, **more: Any) -> tuple[str, str, list[str], str, int]:
    """Reasoning, and what `written` returns."""
    more = {"tools": TOOLS, "temperature": 0, "max_tokens": 40, **more}
    answer = chat(app, stream=stream, **more, **({"stream_options": {"include_usage": True}} if stream else {}))
    assert answer.status_code == 200, answer.text
    if not stream:
        made = answer.json()
        (choice,), message = made["choices"], made["choices"][0]["message"]
        content, calls, reason = message["content"] or "", message.get("tool_calls", []), choice["finish_reason"]
        reasoning = message.get("reasoning", "")
        assert reasoning == message.get("reasoning_content", "")
    else:
        *events, made = sent_events(answer.text)
        choices = [event["choices"][0] for event in events]
        content = "".join(choice["delta"].get("content") or "" for choice in choices)
        reasoning = "".join(choice["delta"].get("reasoning") or "" for choice in choices)
        calls = list[Any]()
        for delta in (delta for choice in choices for delta in choice["delta"].get("tool_calls", ())):
            if "id" in delta:
                calls.append(delta)
            else:
                assert delta.keys() == {"index", "function"}
                calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
        reason = choices[-1]["finish_reason"]
    for i, call in enumerate(calls):
        assert len(call["id"]) in (9, 29)
        assert call["function"]["name"] in ("weather", "time")
        assert call.get("index") == (i if stream else None)
    arguments = [call["function"]["arguments"] for call in calls]
    return reasoning, content, arguments, reason, made["usage"]["completion_tokens"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("special", [(), ALL_TAGS, ("<tool_call>",), ("</think>",)], ids=str)
def test_tags_may_be_special_tokens(tmp_path: Path, stream: bool, special: tuple[str, ...]) -> None:
    """The parser sees them all, the client none."""
    script = ["<think>", "Hm ", "</think>", "Look. ", "<tool_call>", OSLO, "</tool_call>"]
    script += ["<|im_start|>", "Bye <", "pad>"]  # a special token that is no tag, and HTML that could be one
    *found, _ = answered(scripted(tmp_path, script, special), stream)
    assert found == ["Hm ", "Look. Bye <pad>", ['{"city": "Oslo"}'], "tool_calls"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("special", [(), ALL_TAGS], ids=str)
def test_a_thought_that_the_template_opens_has_no_calls(tmp_path: Path, stream: bool, special: tuple[str, ...]) -> None:
    script = ["Maybe ", "<tool_call>", ROME, "</tool_call>", "? ", "</think>", f"<tool_call>{OSLO}</tool_call>"]
    app = scripted(tmp_path, script, special)
    for parallel in (True, False):
        more = {"chat_template_kwargs": {"thinks": True}, "parallel_tool_calls": parallel}
        reasoning, content, calls, _, _ = answered(app, stream, **more)
        assert reasoning == "".join("" if piece in special else piece for piece in script[:-2])
        assert content == ""
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


# --- conversations with the real tokenizers and templates of other models; transformers is the oracle ------------------

START = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How warm is it in Oslo?"}]
CALLS = {"role": "assistant", "content": None, "tool_calls": [
    {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"warm": true}'}}
]}  # fmt: skip


@pytest.fixture(scope="module", params=["qwen3", "llama3_1", "gemma3"])
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """A tiny random model with a real tokenizer."""
    import transformers

    path = tmp_path_factory.mktemp(request.param)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(real_tokenizer(request.param) / name, path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=2048, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return LLM(path, max_total_tokens=4096)


@pytest.fixture(scope="module")
def tiny_client(real: LLM) -> Iterator[openai.OpenAI]:
    with running(patient_app(real, served_model_name="tiny")) as up:
        yield openai.OpenAI(base_url=f"{up.url}/v1", api_key="none", max_retries=0, timeout=HANG_S)


def as_objects(messages: list[Any]) -> list[dict[str, Any]]:
    """Messages as transformers' documentation writes them: arguments are objects, and nothing is null."""
    plain = [deepcopy(message) for message in messages]  # one may be there several times
    for message in plain:
        message["content"] = message["content"] or ""
        for call in message.get("tool_calls") or ():
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return [{name: value for name, value in message.items() if value is not None} for message in plain]


@pytest.mark.slow
def test_three_rounds_of_calls(real: LLM, tiny_client: openai.OpenAI) -> None:
    """Qwen's calls are the model's. The others' templates show no tools: here, the client says what they called."""
    tokenizer = real.tokenizer.hf_tokenizer
    knows = "<tool_call>" in tokenizer.chat_template
    role = "user" if "<start_of_turn>" in tokenizer.chat_template else "tool"  # Gemma's has no role for results
    more: dict[str, Any] = {"tools": TWO} if knows else {}
    no_thoughts = {"chat_template_kwargs": {"enable_thinking": False}}  # of a random model, they would hardly end
    messages: list[Any] = [*START]
    for _ in range(3):
        if knows:
            asked = {"model": "tiny", "messages": messages, "max_tokens": 300, "temperature": 1, **more}
            made = tiny_client.chat.completions.create(
                **asked, tool_choice="required", parallel_tool_calls=False, seed=1, extra_body=no_thoughts
            )
            message = made.choices[0].message
            assert message.content is None
            assert message.tool_calls is not None
            assert json.loads(message.tool_calls[0].function.arguments)
        else:
            message = CALLS
        call_id = CALLS["tool_calls"][0]["id"] if message is CALLS else message.tool_calls[0].id
        messages += [message, {"role": role, "tool_call_id": call_id, "content": '{"degrees": 21}'}]
        extra = {"return_token_ids": True, "ignore_eos": True}
        made = tiny_client.chat.completions.create(
            model="tiny", messages=messages, temperature=0, max_tokens=8, extra_body=extra, **more
        )
        dumped = [each if isinstance(each, dict) else each.model_dump() for each in messages]
        text = tokenizer.apply_chat_template(as_objects(dumped), tokenize=False, add_generation_prompt=True, **more)
        assert made.choices[0].prompt_token_ids == tokenizer(text, add_special_tokens=False)["input_ids"]
        (wanted,) = real.chat(dumped, greedy(8, ignore_eos=True), chat_template_kwargs=more)
        assert made.choices[0].message.content == wanted.text
        assert made.choices[0].finish_reason == "length"


@pytest.mark.slow
def test_what_a_template_refuses_stays_refused(real: LLM, tiny_client: openai.OpenAI) -> None:
    messages: list[Any] = [*START, CALLS, {"role": "tool", "tool_call_id": "call_1", "content": "21"}]
    if "raise_exception" not in real.tokenizer.hf_tokenizer.chat_template:
        assert render_chat(real.tokenizer.hf_tokenizer, messages)
        return
    with pytest.raises(openai.BadRequestError, match="roles must alternate"):
        tiny_client.chat.completions.create(model="tiny", messages=messages, max_tokens=2)
    with pytest.raises(ValueError, match="roles must alternate"):
        real.chat(messages, greedy(2))


REAL = {  # npm's files: (shows tools, tool calls, reasoning)
    "qwen3": (True, "hermes", "think"),
    "llama3_1": (False, None, None),
    "gemma3": (False, None, None),
    "deepseek_v3": (False, None, None),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_the_formats_of_real_templates_are_recognised(name: str) -> None:
    tokenizer = Tokenizer.from_pretrained(real_tokenizer(name))
    found = [getattr(of(tokenizer), "name", None) for of in (format_of, reasoning_of)]
    assert (renders_tools(tokenizer), *found) == REAL[name]


@pytest.mark.slow
def test_tools_are_shown_as_transformers_shows_them(real: LLM, tiny_client: openai.OpenAI) -> None:
    tokenizer = real.tokenizer.hf_tokenizer
    text = tokenizer.apply_chat_template(START, tools=SHOWN, tokenize=False, add_generation_prompt=True)
    assert render_chat(tokenizer, START, {"tools": SHOWN}) == text
    if "<tool_call>" in tokenizer.chat_template:
        made = tiny_client.chat.completions.create(
            model="tiny", messages=START, tools=SENT, max_tokens=1, extra_body={"return_token_ids": True}
        )
        assert tokenizer.decode(made.choices[0].prompt_token_ids) == text


@pytest.mark.slow
def test_a_developer_is_the_system(real: LLM) -> None:
    messages = [{"role": "developer", "content": "Be brief."}, START[1]]
    assert render_chat(real.tokenizer.hf_tokenizer, messages) == render_chat(real.tokenizer.hf_tokenizer, START)
