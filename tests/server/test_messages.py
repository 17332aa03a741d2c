"""/v1/messages: Anthropic's protocol, with the same model behind it; what a stream must say is written here."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from nanoinfer import LLM
from nanoinfer.server.messages import _object
from tests.helpers.agents import ARGUMENTS, PARAMETERS, agent_llm
from tests.helpers.engines import make_engine
from tests.helpers.servers import Running, ask, patient_app, running, server_behind_barrier
from tests.helpers.waiting import HANG_S
from tests.server.conftest import greedy

MESSAGES = "/v1/messages"
HI = {"model": "story", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 40, "temperature": 0}
ONCE = {"type": "auto", "disable_parallel_tool_use": True}
TOOL = {"name": "weather", "description": "d", "input_schema": PARAMETERS}
ASKED = {
    "model": "agent", "max_tokens": 60, "temperature": 0, "tools": [TOOL], "tool_choice": ONCE,
    "messages": [{"role": "user", "content": "How warm?"}],
}  # fmt: skip
USE = {"type": "tool_use", "name": "weather", "input": json.loads(ARGUMENTS), "caller": {"type": "direct"}}
BLOCKS = [
    {"type": "thinking", "thinking": "Hm, Oslo", "signature": ""},
    {"type": "text", "text": "Let me look. ", "citations": []},
    USE,
]


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(patient_app(agent_llm(tmp_path_factory.mktemp("agent")), served_model_name="agent")) as up:
        yield up


def created(server: Running, body: dict[str, Any]) -> dict[str, Any]:
    answer = server.post(MESSAGES, body)
    assert answer.status_code == 200, answer.text
    made = answer.json()
    assert (made["type"], made["role"], made["id"][:4]) == ("message", "assistant", "msg_")
    return made


def events_of(text: str) -> list[dict[str, Any]]:
    """Events of a stream, each named as its type."""
    events = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def told(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client puts together from a stream."""
    begin, *others, delta, stop = events
    assert [event["type"] for event in (begin, delta, stop)] == ["message_start", "message_delta", "message_stop"]
    message, is_open, written = begin["message"], False, ""
    assert (message["content"], message["stop_reason"]) == ([], None)
    for event in others:
        at_end = event["type"] == "content_block_start"
        assert is_open is not at_end
        assert event["index"] == len(message["content"]) - (not at_end)
        if at_end:
            message["content"].append(event["content_block"])
            is_open, written = True, ""
        elif event["type"] == "content_block_delta":
            kind = event["delta"].pop("type")
            (field, piece), block = *event["delta"].items(), message["content"][-1]
            of = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")}
            assert (kind, field) == of.get(block["type"], ("input_json_delta", "partial_json"))
            written += piece
            if field in block:
                block[field] += piece
        else:
            assert event["type"] == "content_block_stop"
            is_open = False
            if message["content"][-1]["type"] == "tool_use":
                message["content"][-1]["input"] = json.loads(written)
    return {**message, **delta["delta"], "usage": delta["usage"]}


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    blocks = [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]
    usage = {**message["usage"]}
    usage["input_tokens"] += usage.pop("cache_read_input_tokens")
    return {**message, "id": None, "content": blocks, "usage": usage}


def test_an_answer_is_what_chat_gives(server: Running, reference: LLM) -> None:
    (wanted,) = reference.chat(HI["messages"], greedy(40))  # type: ignore[arg-type]
    made = created(server, HI)
    assert made["content"] == [{"type": "text", "text": wanted.text, "citations": []}]
    assert (made["stop_reason"], made["stop_sequence"], made["model"]) == ("end_turn", None, "story")
    usage = made["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == wanted.prompt_tokens
    assert usage["output_tokens"] == len(wanted.token_ids)


def test_messages_have_their_own_ids_whatever_clients_call_their_requests(server: Running) -> None:
    made = [server.post(MESSAGES, HI, headers={"x-request-id": "mine"}) for _ in range(2)]
    assert [answer.headers["x-request-id"] for answer in made] == ["mine"] * 2
    assert len({answer.json()["id"] for answer in made}) == 2, "LangGraph keeps one message of each id"


@pytest.mark.parametrize("stream", [False, True])
def test_a_loop_with_a_tool(agent: Running, stream: bool) -> None:
    def create(body: dict[str, Any]) -> dict[str, Any]:
        whole = created(agent, body)
        if not stream:
            return whole
        streamed = told(events_of(agent.post(MESSAGES, {**body, "stream": True}).text))
        assert without_ids(streamed) == without_ids(whole)
        return streamed

    first = create(ASKED)
    assert (without_ids(first)["content"], first["stop_reason"]) == (BLOCKS, "tool_use")
    assert first["usage"]["output_tokens_details"] == {"thinking_tokens": 4}
    result = {
        "type": "tool_result",
        "tool_use_id": first["content"][-1]["id"],
        "content": [{"type": "text", "text": "21"}],
    }
    turns = [{"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
    body = {**ASKED, "messages": [*ASKED["messages"], *turns]}  # type: ignore[misc]
    second = create(body)
    assert (second["content"][0]["text"], second["stop_reason"]) == ("It is warm.", "end_turn")
    assert second["usage"]["cache_read_input_tokens"] > 0.8 * first["usage"]["input_tokens"]
    counted = {name: body[name] for name in ("model", "messages", "tools", "tool_choice")}
    answer = agent.post(f"{MESSAGES}/count_tokens", counted)
    usage = second["usage"]
    assert answer.json() == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


def test_the_model_reads_that_a_tool_has_failed(agent: Running) -> None:
    def prompt(**result: Any) -> int:
        turn = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", **result}]}
        body = {"model": "agent", "messages": [*ASKED["messages"], turn]}  # type: ignore[misc]
        return agent.post(f"{MESSAGES}/count_tokens", body).json()["input_tokens"]

    for content in ("no city", [{"type": "text", "text": "no city"}]):
        assert prompt(content=content, is_error=True) == prompt(content="Error: no city")
        assert prompt(content=content, is_error=False) == prompt(content="no city")
    assert prompt(is_error=True) == prompt(content="Error: ")


@pytest.mark.parametrize(
    ("more", "reason", "sequence"),
    [
        ({"max_tokens": 3}, "max_tokens", None),
        ({"stop_sequences": ["look"]}, "stop_sequence", "look"),
        ({"tools": [], "max_tokens": 10**6}, "end_turn", None),
    ],
)
def test_stop_reasons(agent: Running, more: dict[str, Any], reason: str, sequence: str | None) -> None:
    made = created(agent, {**ASKED, "tool_choice": None, **more})
    assert (made["stop_reason"], made["stop_sequence"]) == (reason, sequence)


def test_as_many_tokens_as_there_is_room_for() -> None:
    app = patient_app(LLM("story", max_total_tokens=256, max_context_len=24))
    made = ask(app, "POST", MESSAGES, json={**HI, "temperature": 1, "max_tokens": 10**6}).json()
    assert made["stop_reason"] in ("model_context_window_exceeded", "end_turn")
    form = {"type": "json_schema", "schema": {"type": "string", "minLength": 200}}
    made = ask(app, "POST", MESSAGES, json={**HI, "max_tokens": 10**6, "output_config": {"format": form}}).json()
    assert made["stop_reason"] == "model_context_window_exceeded"


def test_a_call_that_is_cut_off_keeps_what_was_written(agent: Running) -> None:
    made = created(agent, {**ASKED, "max_tokens": 8})
    assert (made["content"][-1]["input"], made["stop_reason"]) == ({"arguments": '{"city": "O'}, "max_tokens")


@pytest.mark.parametrize(
    "written", ['{"a": 1e999}', '{"a": "\\ud800"}', '{"a": NaN}', "[1]", "{", '{"a": ' + "9" * 5000 + "}"]
)
def test_arguments_that_json_cannot_say_again_are_handed_on_as_text(written: str) -> None:
    assert _object(written) == {"arguments": written}
    assert _object('{"a": [1.5, "é"]}') == {"a": [1.5, "é"]}


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}], ids=str)
def test_a_tool_that_must_be_used_is_used(agent: Running, choice: dict[str, str]) -> None:
    made = created(agent, {**ASKED, "tool_choice": choice, "temperature": 1.5, "max_tokens": 300})
    assert made["content"][-1]["type"] == "tool_use"
    assert set(made["content"][-1]["input"]) == {"city", "days"} or made["stop_reason"] == "max_tokens"


def test_whether_and_how_much_to_think_reaches_the_template(agent: Running) -> None:
    def prompt(**more: Any) -> int:
        counted = {name: ASKED[name] for name in ("model", "messages")}
        return agent.post(f"{MESSAGES}/count_tokens", {**counted, **more}).json()["input_tokens"]

    assert prompt(thinking={"type": "disabled"}) == prompt() + len("none")
    assert prompt(output_config={"effort": "low"}) == prompt() + len("low")
    assert prompt(thinking={"type": "enabled", "budget_tokens": 1024}) == prompt()


def test_a_header_that_differs_each_time_does_not_cost_the_prefix(agent: Running) -> None:
    """Claude Code puts one before its system prompt."""
    said = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}

    def asked(number: int) -> dict[str, Any]:
        header = {"type": "text", "text": f"x-anthropic-billing-header: cch={number};"}
        return created(agent, {**ASKED, "system": [header, said]})["usage"]

    assert asked(1)["input_tokens"] >= asked(2)["input_tokens"] == 1
    assert asked(3) == created(agent, {**ASKED, "system": "Be brief."})["usage"]


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("messages[0].content[0].type", {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}),
    ("messages[0].content[0].content[0].type", {"messages": [{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image"}]}]}]}),
    ("messages", {"messages": []}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": None}),
    ("tools[0].type", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
    ("tool_choice.name", {"tool_choice": {"type": "tool"}}),
    ("tool_choice", {"tool_choice": {"type": "any"}}),
    ("mcp_servers", {"mcp_servers": [{"url": "x"}]}),
    ("thread", {"thread": {"type": "create"}}),
    ("temperature", {"temperature": 3e30}),
    ("output_config.format", {"output_config": {"format": {"type": "json_schema", "schema": {"type": "nonsense"}}}}),
    ("messages", {"messages": [{"role": "user", "content": "x " * 4000}]}),
    ("tempreature", {"tempreature": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("param", "more"), REFUSED, ids=lambda it: str(it)[:40])
def test_what_is_not_there_is_refused_in_anthropics_shape(server: Running, param: str, more: dict[str, Any]) -> None:
    answer = server.post(MESSAGES, {**HI, **more})
    made = answer.json()
    assert (answer.status_code, made["type"], made["error"]["type"]) == (400, "error", "invalid_request_error")
    assert (made["error"]["param"], made["request_id"]) == (param, answer.headers["x-request-id"])
    assert made["error"]["message"].startswith(param)
    # Anthropic's tool_runner asks for a thread, and on this error sends the whole conversation each time
    wanted = {"error_code": "thread_unsupported_request"} if param == "thread" else None
    assert made["error"].get("details") == wanted


def test_keys_of_both_kinds() -> None:
    app = patient_app(make_engine(), api_keys=["key"])
    for headers, status in (
        ({"x-api-key": "key"}, 400),
        ({"authorization": "Bearer key"}, 400),
        ({"x-api-key": "other"}, 401),
        ({"x-api-key": "key", "authorization": "Bearer other"}, 401),
        ({}, 401),
    ):
        for path in (MESSAGES, f"{MESSAGES}/count_tokens"):
            answer = ask(app, "POST", path, json={}, headers=headers)
            kind = "invalid_request_error" if status == 400 else "authentication_error"
            assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)


def test_a_failure_in_the_middle_of_a_stream_is_an_error_event() -> None:
    with server_behind_barrier() as (server, barrier, engine):
        engine.builder.chat_prompt = lambda *_: [97]  # type: ignore[method-assign, assignment]
        barrier.error, barrier.error_at = MemoryError("secret text"), 3
        barrier.let_one_through()
        body = {**HI, "model": "nanoinfer", "stream": True}
        with httpx.stream("POST", server.url + MESSAGES, json=body, timeout=HANG_S) as answer:
            lines = answer.iter_lines()
            first = next(lines)
            barrier.open()
            *_, last = events_of("\n".join([first, *lines]))
        assert (last["type"], last["error"]["type"], last["error"]["code"]) == ("error", "api_error", "step_failed")
        server.check_idle()
