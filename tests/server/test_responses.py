"""/v1/responses as OpenAI's own client sees it; its types say which fields an answer and an event must have."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseItem, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from nanoinfer import LLM
from nanoinfer.server.protocol import MOST_ITEMS, Message
from nanoinfer.server.responses.protocol import ResponsesRequest, messages_of
from nanoinfer.server.responses.store import ResponseStore
from tests.helpers.agents import ARGUMENTS, PARAMETERS, agent_llm
from tests.helpers.async_engines import PassBarrier
from tests.helpers.servers import Running, ask, patient_app, request_bytes, running, server_behind_barrier
from tests.helpers.waiting import HANG_S, until
from tests.server.conftest import greedy

RESPONSES = "/v1/responses"
HI = {"model": "story", "input": "Hello! Who are you?", "temperature": 0, "max_output_tokens": 40}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TOOL = {"type": "function", "name": "weather", "description": "d", "parameters": PARAMETERS, "strict": True}
OTHER = {"type": "function", "name": "time", "parameters": {"type": "object"}}
CONTENT = ["content_part.added", "output_text.delta", "output_text.done", "content_part.done", "output_item.done"]


def events_of(server: Running, body: dict[str, Any]) -> list[dict[str, Any]]:
    """What a stream says, after all that holds for each event."""
    answer = server.post(RESPONSES, {**body, "stream": True})
    assert answer.status_code == 200, answer.text
    *blocks, done = answer.text.strip().split("\n\n")
    assert done == "data: [DONE]"
    events = []
    for i, block in enumerate(blocks):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert (name, event["sequence_number"]) == (f"event: {event['type']}", i)
        EVENT.validate_python(event)
        assert type(EVENT.validate_python(event)).model_fields["type"].annotation == Literal[event["type"]]  # type: ignore[valid-type]
        events.append(event)
    return events


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """Types of events, deltas in a row as one."""
    names = [event["type"].removeprefix("response.") for event in events]
    return [name for i, name in enumerate(names) if i == 0 or name != names[i - 1]]


def without_ids(value: Any) -> Any:
    """What is the same in two answers."""
    if isinstance(value, list):
        return list(map(without_ids, value))
    if not isinstance(value, dict):
        return value
    times = ("id", "call_id", "created_at", "completed_at", "usage")
    return {name: without_ids(each) for name, each in value.items() if name not in times}


# --- text ---


def test_an_answer_is_what_chat_gives(server: Running, client: openai.OpenAI, reference: LLM) -> None:
    (wanted,) = reference.chat([{"role": "user", "content": HI["input"]}], greedy(40))
    answer = server.post(RESPONSES, {**HI, "metadata": {"a": "b"}, "user": "me"})
    Response.model_validate(answer.json())
    made = client.responses.create(**HI)
    assert (made.output_text, made.status) == (wanted.text, "completed")
    assert (made.usage.input_tokens, made.usage.output_tokens) == (wanted.prompt_tokens, len(wanted.token_ids))
    assert made.usage.input_tokens_details.cached_tokens > 0
    assert (answer.json()["metadata"], answer.json()["user"], made.temperature) == ({"a": "b"}, "me", 0)
    assert (made.store, made.parallel_tool_calls, made.tool_choice) == (True, True, "auto")


def test_a_stream_says_how_the_answer_comes_to_be(server: Running) -> None:
    events = events_of(server, HI)
    assert kinds(events) == ["created", "in_progress", "output_item.added", *CONTENT, "completed"]
    whole, last = server.post(RESPONSES, HI).json(), events[-1]["response"]
    assert without_ids(last) == without_ids(whole)
    (message,) = last["output"]
    text = "".join(event["delta"] for event in events if event["type"].endswith("delta"))
    assert message["content"][0]["text"] == text == events[-4]["text"]
    assert {event["item_id"] for event in events if "item_id" in event} == {message["id"]}
    assert {event["response"]["id"] for event in events if "response" in event} == {last["id"]}


def test_openais_stream_helper_reads_it(client: openai.OpenAI) -> None:
    with client.responses.stream(**HI) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == text != ""


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_cut_off_is_incomplete(server: Running, stream: bool) -> None:
    body = {**HI, "max_output_tokens": 2}
    made = events_of(server, body)[-1]["response"] if stream else server.post(RESPONSES, body).json()
    assert (made["status"], made["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (made["output"][0]["status"], made["completed_at"]) == ("incomplete", None)


def test_log_probabilities(server: Running) -> None:
    for more in ({"top_logprobs": 2}, {"include": ["message.output_text.logprobs"], "top_logprobs": 2}):
        events = events_of(server, {**HI, **more})
        (part,) = events[-1]["response"]["output"][0]["content"]
        assert "".join(entry["token"] for entry in part["logprobs"]) == part["text"]
        told = [entry for event in events if event["type"].endswith(".delta") for entry in event["logprobs"]]
        assert told == part["logprobs"]
        assert {len(entry["top_logprobs"]) for entry in told} == {2}


class Animal(BaseModel):
    kind: Literal["fox", "owl"]
    legs: Literal[2, 4]


def test_a_long_answer_can_be_handed_back_with_its_log_probabilities() -> None:
    part = {"type": "output_text", "text": "x", "logprobs": [{}] * (MOST_ITEMS + 1)}
    ResponsesRequest.model_validate({**HI, "input": [{"role": "assistant", "content": [part]}]})


def test_an_answer_follows_a_schema(client: openai.OpenAI) -> None:
    made = client.responses.parse(model="story", input="Hi", text_format=Animal)
    assert isinstance(made.output_parsed, Animal)
    form = {"type": "json_object"}
    made = client.responses.create(model="story", input="Hi", text={"format": form}, max_output_tokens=1)
    assert made.output_text in ("{", "{}", '{"')
    assert made.text.format.type == "json_object"


# --- thoughts and calls ---


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(patient_app(agent_llm(tmp_path_factory.mktemp("agent")), served_model_name="agent")) as up:
        yield up


@pytest.fixture
def agents_client(agent: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{agent.url}/v1", api_key="none", max_retries=0, timeout=HANG_S)


ASKED = {"model": "agent", "input": "How warm?", "tools": [TOOL], "temperature": 0, "parallel_tool_calls": False}
ITEMS = ["reasoning", "message", "function_call"]


def test_thoughts_text_and_calls_are_items_in_their_order(agent: Running) -> None:
    events = events_of(agent, ASKED)
    thought, text, call = output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ITEMS
    assert (thought["content"], thought["summary"]) == ([{"type": "reasoning_text", "text": "Hm, Oslo"}], [])
    assert (text["content"][0]["text"], call["name"], call["arguments"]) == ("Let me look. ", "weather", ARGUMENTS)
    assert {item["status"] for item in output} == {"completed"}
    thinking = [name.replace("output_text", "reasoning_text") for name in CONTENT]
    calling = ["function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    added = "output_item.added"
    assert kinds(events) == [
        *("created", "in_progress", added), *thinking, added, *CONTENT, added, *calling, "completed"
    ]  # fmt: skip
    assert [event["output_index"] for event in events if event["type"].endswith("item.added")] == [0, 1, 2]
    assert "".join(event["delta"] for event in events if event["type"].endswith("arguments.delta")) == ARGUMENTS
    whole = agent.post(RESPONSES, ASKED).json()
    assert without_ids(whole["output"]) == without_ids(output)
    for made in (whole, events[-1]["response"]):
        assert made["usage"]["output_tokens_details"] == {"reasoning_tokens": 4}


def test_arguments_are_told_while_they_are_written(tmp_path: Path) -> None:
    llm = agent_llm(tmp_path)
    llm.engine.model_runner.model = barrier = PassBarrier(llm.engine.model_runner.model, False)
    with running(patient_app(llm, served_model_name="agent")) as server:
        try:
            for _ in range(8):
                barrier.let_one_through()
            body = {**ASKED, "stream": True}
            with httpx.stream("POST", server.url + RESPONSES, json=body, timeout=HANG_S) as answer:
                deltas = (
                    line for line in answer.iter_lines() if '"response.function_call_arguments.delta"' in line[:60]
                )
                assert json.loads(next(deltas)[6:])["delta"] == ARGUMENTS[:11]
                assert barrier.passes == 8, "the model has not written the rest"
                barrier.open()
                assert list(deltas)
        finally:
            barrier.open()


def test_a_call_that_is_cut_off_is_incomplete(agent: Running) -> None:
    made = agent.post(RESPONSES, {**ASKED, "max_output_tokens": 8}).json()
    assert (made["status"], made["output"][-1]["type"], made["output"][-1]["status"]) == (
        "incomplete", "function_call", "incomplete"
    )  # fmt: skip
    assert {item["status"] for item in made["output"][:-1]} == {"completed"}
    whole = agent.post(RESPONSES, {**ASKED, "max_output_tokens": 9}).json()
    assert whole["output"][-1]["status"] == "completed", "its JSON is whole"
    stopped = agent.post(RESPONSES, {**ASKED, "stop": ARGUMENTS[-6:]}).json()
    assert (stopped["status"], stopped["output"][-1]["status"]) == ("completed", "incomplete"), "nobody may call it"


@pytest.mark.parametrize("way", ["items", "previous", "references", "sealed"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_loop_with_a_tool(agents_client: openai.OpenAI, way: str, stream: bool) -> None:
    def create(**body: Any) -> Any:
        if not stream:
            return agents_client.responses.create(**{**ASKED, **body})
        *_, last = agents_client.responses.create(**{**ASKED, **body}, stream=True)
        return last.response

    first = create(**({"include": ["reasoning.encrypted_content"], "store": False} if way == "sealed" else {}))
    call = first.output[-1]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": '{"degrees": 21}'}
    asked = {"role": "user", "content": ASKED["input"]}
    references = [{"type": "item_reference", "id": item.id} for item in first.output]
    body: dict[str, Any] = {
        "items": {"input": [asked, *first.output, result]},
        "sealed": {"input": [asked, {**first.output[0].model_dump(), "content": None}, *first.output[1:], result]},
        "references": {"input": [asked, *references, result]},
        "previous": {"input": [result], "previous_response_id": first.id},
    }[way]
    second = create(**body)
    assert (second.output_text, second.status) == ("It is warm.", "completed")
    assert second.usage.input_tokens_details.cached_tokens > 0.8 * first.usage.total_tokens
    assert agents_client.responses.input_items.list(second.id).data[0].output == result["output"]
    function = {"name": "weather", "arguments": ARGUMENTS}
    said = {"role": "assistant", "content": "Let me look. ", "reasoning_content": "Hm, Oslo"}
    said["tool_calls"] = [{"id": "1", "type": "function", "function": function}]  # type: ignore[assignment]
    told = {"role": "tool", "tool_call_id": "1", "content": '{"degrees": 21}'}
    tool = {"type": "function", "function": {name: TOOL[name] for name in ("name", "description", "parameters")}}
    chat = agents_client.chat.completions.create(model="agent", messages=[asked, said, told], tools=[tool])  # type: ignore[list-item]
    assert second.usage.input_tokens == chat.usage.prompt_tokens


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"weather", "time"}),
        ({"type": "function", "name": "weather"}, {"weather"}),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "time"}]}, {"time"}),
    ],
    ids=["required", "named", "allowed"],
)
def test_what_must_be_called_is_called(agent: Running, choice: Any, names: set[str]) -> None:
    body = {**ASKED, "tools": [TOOL, OTHER], "tool_choice": choice, "temperature": 1.5, "seed": 1}
    made = agent.post(RESPONSES, {**body, "max_output_tokens": 200}).json()
    assert {item["name"] for item in made["output"] if item["type"] == "function_call"} <= names
    assert made["output"][-1]["type"] == "function_call"
    assert made["tool_choice"] == choice


def test_a_search_that_is_offered_among_functions_is_ignored(
    agent: Running, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nanoinfer.server.protocol._noted", set())
    search = {"type": "web_search", "external_web_access": False}  # as Codex sends it
    with caplog.at_level("WARNING", "nanoinfer.server"):
        made = [
            agent.post(RESPONSES, {**ASKED, "tools": tools}).json()
            for tools in ([TOOL], [TOOL, search], [search, TOOL])
        ]
    assert without_ids(made[0]) == without_ids(made[1]) == without_ids(made[2])
    assert len([record for record in caplog.records if "web_search" in record.getMessage()]) == 1


def test_the_effort_reaches_the_template(agent: Running) -> None:
    def prompt(**more: Any) -> int:
        return agent.post(RESPONSES, {**ASKED, **more}).json()["usage"]["input_tokens"]

    assert prompt(reasoning={"effort": "low"}) == prompt() + len("low")  # a token is a byte
    assert prompt(reasoning={"summary": "auto"}) == prompt(reasoning=None) == prompt()


def test_functions_may_be_in_namespaces(agent: Running) -> None:
    tools = [TOOL, {"type": "namespace", "name": "sky", "description": "d", "tools": [TOOL]}]
    asked = {**ASKED, "tools": tools[1:], "tool_choice": "required", "max_output_tokens": 300, "seed": 1}
    made = agent.post(RESPONSES, asked).json()
    Response.model_validate(made)
    call = made["output"][-1]
    assert (call["namespace"], call["name"]) == ("sky", "weather")
    (turn,) = messages_of(ResponsesRequest(model="m", input=[call]).input, None)  # type: ignore[arg-type]
    assert turn.tool_calls[0].function.name == "sky__weather"
    assert agent.post(RESPONSES, {**ASKED, "tools": tools}).status_code == 200, "names differ"


def message(role: str, content: str | None, **more: Any) -> Message:
    return Message(role=role, content=content, **more)


def test_what_a_model_did_in_one_turn_is_one_message() -> None:
    def call(name: str) -> dict[str, Any]:
        return {"type": "function_call", "call_id": name, "name": name, "arguments": "{}"}

    def calls(*names: str) -> dict[str, Any]:
        each = [{"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}} for name in names]
        return {"tool_calls": each}

    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "So"}]}
    items = [
        {"role": "developer", "content": "Be brief."}, {"role": "system", "content": "Do."},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        thought, said, call("f"), call("g"), said,
        *({"type": "function_call_output", "call_id": name, "output": name} for name in "fg"),
        said, said, thought, call("f"), {"role": "user", "content": "b"},
    ]  # fmt: skip
    found = messages_of(ResponsesRequest(model="m", input=items).input, "Be kind.")  # type: ignore[arg-type]
    assert found == [
        message("system", "Be kind.\n\nBe brief.\n\nDo."), message("user", "a"),
        message("assistant", "SoSo", reasoning_content="Hm", **calls("f", "g")),
        message("tool", "f", tool_call_id="f"), message("tool", "g", tool_call_id="g"),
        message("assistant", "So"), message("assistant", "So"),
        message("assistant", None, reasoning_content="Hm", **calls("f")), message("user", "b"),
    ]  # fmt: skip


# --- what is stored ---


def test_a_stored_response_goes_on_and_can_be_read_and_forgotten(client: openai.OpenAI, server: Running) -> None:
    first = client.responses.create(**HI, instructions="Be brief.")
    assert client.responses.retrieve(first.id) == first
    second = client.responses.create(**{**HI, "input": "More"}, previous_response_id=first.id)
    assert second.usage.input_tokens > first.usage.input_tokens
    assert (second.instructions, second.previous_response_id) == (None, first.id), "they hold for one response"
    listed = client.responses.input_items.list(second.id, order="asc", limit=2)
    TypeAdapter(list[ResponseItem]).validate_python([item.model_dump() for item in listed.data])
    assert [item.content[0].text for item in listed] == [HI["input"], first.output_text, "More"], "page by page"
    client.responses.delete(first.id)
    for ask_for in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            ask_for(first.id)
    third = client.responses.create(**{**HI, "input": "And?"}, previous_response_id=second.id)
    assert third.usage.input_tokens > second.usage.input_tokens, "the conversation is the second one's, too"
    assert server.get(f"{RESPONSES}/{third.id}?stream=true").status_code == 400


def test_what_is_not_stored_cannot_be_named(client: openai.OpenAI) -> None:
    made = client.responses.create(**HI, store=False)
    assert made.store is False
    with pytest.raises(openai.NotFoundError) as refused:
        client.responses.create(**HI, previous_response_id=made.id)
    assert (refused.value.param, refused.value.code) == ("previous_response_id", "response_not_found")


@pytest.mark.parametrize(("most", "kept"), [(2, [False, True, True]), (0, [False] * 3)])
def test_the_newest_responses_are_stored(most: int, kept: list[bool]) -> None:
    app = patient_app(LLM("story", max_total_tokens=1024), store_responses=most)
    made = [ask(app, "POST", RESPONSES, json=HI).json() for _ in kept]
    found = [ask(app, "GET", f"{RESPONSES}/{each['id']}").status_code == 200 for each in made]
    assert found == kept
    assert [each["store"] for each in made] == [most > 0] * 3
    reference = [{"type": "item_reference", "id": made[0]["output"][0]["id"]}]
    answer = ask(app, "POST", RESPONSES, json={**HI, "input": reference})
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "input[0].id")


def test_the_store_has_a_limit_in_bytes() -> None:
    def answer(name: str, size: int) -> dict[str, Any]:
        return {"id": name, "output": [{"id": f"{name}-item", "text": "x" * size}]}

    store = ResponseStore(10, most_bytes=1000)
    for i in range(10):
        store.add(answer(str(i), 100), [{"id": "asked"}])
    assert 0 < len(store) < 4
    assert store.items({"asked", "none"}) == {"asked": {"id": "asked"}}
    store.add(answer("large", 2000), [])
    assert (len(store) > 0, store.get("9").num_inputs) == (True, 1), "what can never fit takes no place"
    for i in range(10 - len(store), 10):
        store.remove(str(i))
    assert (len(store), store._size) == (0, 0)


# --- what is refused, and what goes wrong ---

REFUSED: list[tuple[str, Any]] = [
    ("background", {"background": True}),
    ("conversation", {"conversation": "conv_1"}),
    ("prompt", {"prompt": {"id": "p"}}),
    ("max_tool_calls", {"max_tool_calls": 3}),
    ("truncation", {"truncation": "auto"}),
    ("max_tokens", {"max_tokens": 3}),
    ("response_format", {"response_format": {"type": "text"}}),
    ("n", {"n": 2}),
    ("tools[0].type", {"tools": [{"type": "web_search"}]}),
    ("tools[1].type", {"tools": [OTHER, {"type": "mcp", "server_label": "x"}]}),
    ("tools", {"tools": [OTHER]}),  # the model's template knows none
    ("tool_choice", {"tool_choice": {"type": "file_search"}}),
    ("tool_choice", {"tools": [OTHER, {"type": "web_search"}], "tool_choice": {"type": "web_search"}}),
    ("tool_choice", {"tool_choice": "required"}),
    ("input", {"input": []}),
    ("input", {"input": None}),
    ("input", {"input": "x " * 4000}),
    ("input[0].type", {"input": [{"type": "computer_call"}]}),
    ("input[1].content[0].type", {"input": [{"role": "user", "content": "x"}, {"role": "user", "content": [
        {"type": "input_image", "image_url": "http://x"}]}]}),
    ("input[0].output[0].type", {"input": [{"type": "function_call_output", "call_id": "1", "output": [
        {"type": "input_file", "file_id": "f"}]}]}),
    ("input[0].role", {"input": [{"role": "tool", "content": "x"}]}),
    ("input[0].arguments", {"input": [{"type": "function_call", "call_id": "1", "name": "f"}]}),
    ("instruction", {"instruction": "x"}),
    ("text.format.schema", {"text": {"format": {"type": "json_schema", "name": "x"}}}),
    ("text.format", {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "nonsense"}}}}),
    ("reasoning.effort", {"reasoning": {"effort": "much"}}),
    ("max_output_tokens", {"max_output_tokens": 0}),
    ("max_output_tokens", {"max_output_tokens": 10**6}),
    ("top_logprobs", {"top_logprobs": 21}),
    ("metadata", {"metadata": {str(i): "x" for i in range(17)}}),
]  # fmt: skip


@pytest.mark.parametrize(("param", "more"), REFUSED, ids=lambda it: str(it)[:40])
def test_what_is_not_there_is_refused_by_its_name(server: Running, param: str, more: dict[str, Any]) -> None:
    answer = server.post(RESPONSES, {**HI, **more})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), answer.text
    assert error["message"].startswith(param)
    if error["code"] == "unsupported_field":
        assert re.match(r"[^ ]+=.+: is not supported|tools: ", error["message"]), "with its value"


def test_hints_that_mean_nothing_here_are_accepted(client: openai.OpenAI) -> None:
    plain = client.responses.create(**HI)
    hints: dict[str, Any] = {
        "reasoning": {"effort": "low", "summary": "auto"}, "text": {"verbosity": "low"}, "truncation": "disabled",
        "include": ["reasoning.encrypted_content"], "service_tier": "auto", "prompt_cache_key": "k", "background": False,
    }  # fmt: skip
    assert client.responses.create(**HI, **hints).output_text == plain.output_text


def test_a_failure_in_the_middle_of_a_stream_is_told_in_it() -> None:
    with server_behind_barrier() as (server, barrier, engine):
        engine.builder.chat_prompt = lambda *_: [97]  # type: ignore[method-assign, assignment]
        barrier.error, barrier.error_at = MemoryError("secret text"), 3
        barrier.let_one_through()
        body = {"model": "nanoinfer", "input": "x", "max_output_tokens": 8, "temperature": 0, "stream": True}
        with httpx.stream("POST", server.url + RESPONSES, json=body, timeout=HANG_S) as answer:
            lines = answer.iter_lines()
            assert next(lines) == "event: response.created"
            barrier.open()
            *_, last = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        EVENT.validate_python(last)
        assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
        assert (last["response"]["error"]["code"], "MemoryError" in last["response"]["error"]["message"]) == (
            "server_error", True
        )  # fmt: skip
        assert server.get(f"{RESPONSES}/{last['response']['id']}").status_code == 404
        server.check_idle()


@pytest.mark.parametrize("path", [RESPONSES, "/v1/messages"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_is_aborted(path: str, stream: bool) -> None:
    with server_behind_barrier() as (server, barrier, engine):
        engine.builder.chat_prompt = lambda *_: [97]  # type: ignore[method-assign, assignment]
        text = {"input": "x", "max_output_tokens": 40} if path == RESPONSES else {"max_tokens": 40}
        body = {"model": "nanoinfer", "messages": [{"role": "user", "content": "x"}], **text, "stream": stream}
        if path == RESPONSES:
            del body["messages"]
        sock = server.connect()
        sock.sendall(request_bytes(path, json.dumps(body).encode()))
        until(lambda: server.service.open)
        sock.close()
        until(lambda: all(server.closed_by()))
        barrier.open()
        until(lambda: not server.service.open)
        assert server.metric('nanoinfer:requests_aborted_total{model_name="nanoinfer",reason="disconnect"}') == 1
        server.check_idle()
