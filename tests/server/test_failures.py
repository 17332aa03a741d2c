"""What fails, comes too late or is too much ends the requests that it concerns, with an error, and no others."""

import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from nanoinfer import LLM
from nanoinfer.server.formatter import ChoicesFormatter
from tests.helpers.engines import Clock, make_engine
from tests.helpers.servers import (
    BODY,
    ask,
    in_a_pass,
    let_in,
    patient_app,
    running,
    sent_events,
    server_behind_barrier,
)
from tests.helpers.waiting import HANG_S, until

CHAT = {"model": "nanoinfer", "messages": [{"role": "user", "content": "hush"}], "max_tokens": 2, "temperature": 0}


# --- queues, deadlines, steps ---


def test_a_full_queue_says_when_to_come_again() -> None:
    with server_behind_barrier(rows=1, max_queue=2) as (server, barrier, engine), ThreadPoolExecutor(4) as threads:
        answers = [threads.submit(server.post, "/v1/completions", {**BODY, "max_tokens": 60})]
        until(lambda: in_a_pass(engine))
        answers += [threads.submit(server.post, "/v1/completions", BODY) for _ in range(2)]
        let_in(server, barrier, engine, 3)
        late = threads.submit(server.post, "/v1/completions", {**BODY, "prompt": ["c", "d"]})
        until(late.done)
        refused = server.post("/v1/completions", {**BODY, "prompt": ["x", "y", "z"]})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n"), "it would never fit"
        barrier.open()
        assert [answer.result().json()["choices"][0]["text"][:8] for answer in answers] == ["bcdefghi"] * 3
        refused = late.result()
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "queue_full"
        server.check_idle()


def test_of_several_prompts_all_are_queued_or_none() -> None:
    with server_behind_barrier(is_open=True) as (server, _, engine):
        answer = server.post("/v1/completions", {**BODY, "prompt": ["a", [1, 2], [500]]})
        assert answer.status_code == 400
        assert "prompt[2]" in answer.json()["error"]["message"]
        assert engine.stats().prompt_tokens == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_before_the_first_token_is_a_504(stream: bool) -> None:
    clock = Clock()
    with (
        server_behind_barrier(settings={"request_timeout_s": 50}, rows=1, clock=clock) as (server, barrier, engine),
        ThreadPoolExecutor(2) as threads,
    ):
        first = threads.submit(server.post, "/v1/completions", {**BODY, "max_tokens": 60})
        until(lambda: in_a_pass(engine))
        second = threads.submit(server.post, "/v1/completions", {**BODY, "stream": stream})
        let_in(server, barrier, engine, 2)
        clock.now += 60
        barrier.open()
        for answer in (first.result(), second.result()):
            assert (answer.status_code, answer.headers["x-should-retry"]) == (504, "false")
            assert answer.json()["error"]["code"] == "timeout"
        assert engine.stats().timed_out == 2


def test_a_deadline_in_the_middle_of_a_stream_is_an_error_in_it() -> None:
    clock = Clock()
    with server_behind_barrier(settings={"request_timeout_s": 50}, clock=clock) as (server, barrier, engine):
        barrier.let_one_through()
        with httpx.stream(
            "POST", f"{server.url}/v1/completions", json={**BODY, "stream": True}, timeout=HANG_S
        ) as answer:
            lines = answer.iter_lines()
            first = json.loads(next(lines).removeprefix("data: "))
            assert first["choices"][0]["text"] == "b"
            clock.now += 60
            barrier.open()
            *others, error = sent_events("\n".join(lines))
        assert (answer.status_code, error["error"]["code"]) == (200, "timeout")
        cut_off = [event["choices"][0]["finish_reason"] for event in others]
        assert not any(cut_off), "an answer that is cut off has no finish reason"
        assert engine.stats().timed_out == 1
        assert server.metric('vllm:request_success_total{finished_reason="timeout"') == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_step_that_fails_is_told_and_the_next_one_works(stream: bool) -> None:
    with server_behind_barrier(is_open=True) as (server, barrier, _):
        barrier.error, barrier.error_at = MemoryError("secret text"), 3
        answer = server.post("/v1/completions", {**BODY, "stream": stream})
        if stream and answer.status_code == 200:  # unless both passes and the failure were read at once
            found = sent_events(answer.text)[-1]["error"]
        else:
            assert answer.status_code == 500
            found = answer.json()["error"]
        assert found["code"] == "step_failed"
        assert "MemoryError" in found["message"]
        assert "secret" not in answer.text
        server.check_idle()


# --- tokenizers and templates ---


@pytest.mark.parametrize("template", ["{{ 1 // 0 }}", "{{ raise_exception('not so') }}", "{% for"])
def test_a_chat_template_that_raises_ends_one_request(template: str) -> None:
    llm = LLM("story", max_total_tokens=256)
    llm.tokenizer.hf_tokenizer.chat_template = template
    app = patient_app(llm)
    for path in ("/v1/chat/completions", "/tokenize"):
        body = {**CHAT, "model": "story"} if path != "/tokenize" else {"messages": CHAT["messages"]}
        answer = ask(app, "POST", path, json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "messages"), answer.text
        assert "hush" not in error["message"]
    assert ask(app, "POST", "/v1/completions", json={**BODY, "model": "story"}).status_code == 200


def test_a_chat_template_that_hangs_ends_one_request() -> None:
    free, hanging = threading.Event(), threading.Event()

    def hang(*args: object) -> list[int]:
        hanging.set()
        free.wait(HANG_S)
        return [1]

    with server_behind_barrier(is_open=True, settings={"preparation_timeout_s": 0.1}) as (server, _, engine):
        engine.builder.chat_prompt = hang  # type: ignore[method-assign]
        answer = server.post("/v1/chat/completions", CHAT)
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "preparation_timeout")
        until(hanging.is_set)
        server.check_idle()
        free.set()


# --- writing ---


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_fails_while_it_is_written_is_no_whole_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    def fail(*_: Any) -> Any:
        raise ValueError("hu" + "sh")  # the log shows lines of code

    monkeypatch.setattr(ChoicesFormatter, "last_events" if stream else "whole", fail)
    caplog.set_level(logging.INFO)
    with running(patient_app(make_engine())) as server:
        body = {"model": "nanoinfer", "prompt": "a", "max_tokens": 3, "stream": stream}
        if stream:
            with pytest.raises(httpx.RemoteProtocolError):
                server.post("/v1/completions", body)
        else:
            answer = server.post("/v1/completions", body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
            assert "hush" not in answer.text
        monkeypatch.undo()
        server.check_idle()
    assert "failed: ValueError" in caplog.text
    assert "hush" not in caplog.text
