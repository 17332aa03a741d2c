"""Queues, deadlines and steps that fail. A gate decides when passes run."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.helpers.engines import Clock
from tests.helpers.servers import BODY, gated_server, in_a_pass, let_in
from tests.helpers.waiting import HANG_S, until


def test_a_full_queue_says_when_to_come_again() -> None:
    with gated_server(rows=1, max_queue=2) as (server, gate, engine), ThreadPoolExecutor(4) as threads:
        answers = [threads.submit(server.post, "/v1/completions", {**BODY, "max_tokens": 60})]
        until(lambda: in_a_pass(engine))
        answers += [threads.submit(server.post, "/v1/completions", BODY) for _ in range(2)]
        let_in(server, gate, engine, 3)
        late = threads.submit(server.post, "/v1/completions", {**BODY, "prompt": ["c", "d"]})
        until(late.done)
        refused = server.post("/v1/completions", {**BODY, "prompt": ["x", "y", "z"]})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n"), "it would never fit"
        gate.open()
        assert [answer.result().json()["choices"][0]["text"][:8] for answer in answers] == ["bcdefghi"] * 3
        refused = late.result()
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "queue_full"
        server.check_idle()


def test_of_several_prompts_all_are_queued_or_none() -> None:
    with gated_server(is_open=True) as (server, _, engine):
        answer = server.post("/v1/completions", {**BODY, "prompt": ["a", [1, 2], [500]]})
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith("prompt[2]: token id 500")
        assert engine.stats().prompt_tokens == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_before_the_first_token_is_a_504(stream: bool) -> None:
    clock = Clock()
    with (
        gated_server(settings={"request_timeout_s": 50}, rows=1, clock=clock) as (server, gate, engine),
        ThreadPoolExecutor(2) as threads,
    ):
        first = threads.submit(server.post, "/v1/completions", {**BODY, "max_tokens": 60})
        until(lambda: in_a_pass(engine))
        second = threads.submit(server.post, "/v1/completions", {**BODY, "stream": stream})
        let_in(server, gate, engine, 2)
        clock.now += 60
        gate.open()
        for answer in (first.result(), second.result()):
            assert (answer.status_code, answer.headers["x-should-retry"]) == (504, "false")
            assert answer.json()["error"]["code"] == "timeout"
            assert "request_timeout_s=50" in answer.json()["error"]["message"]
        assert engine.stats().timed_out == 2


def test_a_deadline_in_the_middle_of_a_stream_is_an_error_in_it() -> None:
    clock = Clock()
    with gated_server(settings={"request_timeout_s": 50}, clock=clock) as (server, gate, engine):
        gate.let_one_through()
        with httpx.stream(
            "POST", f"{server.url}/v1/completions", json={**BODY, "stream": True}, timeout=HANG_S
        ) as answer:
            lines = answer.iter_lines()
            first = json.loads(next(lines).removeprefix("data: "))
            assert first["choices"][0]["text"] == "b"
            clock.now += 60
            gate.open()
            *others, error, done = [line for line in lines if line]
        assert answer.status_code == 200
        assert done == "data: [DONE]"
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "timeout"
        reasons = [json.loads(line.removeprefix("data: "))["choices"][0]["finish_reason"] for line in others]
        assert not any(reasons), "an answer that is cut off has no finish reason"
        assert engine.stats().timed_out == 1
        assert server.metric('vllm:request_success_total{finished_reason="timeout"') == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_step_that_fails_is_told_and_the_next_one_works(stream: bool) -> None:
    with gated_server(is_open=True) as (server, gate, _):
        gate.error, gate.error_at = MemoryError("secret text"), 3
        answer = server.post("/v1/completions", {**BODY, "stream": stream})
        if stream and answer.status_code == 200:  # unless both passes and the failure were read at once
            *_, error, done, _ = answer.text.split("\n\n")
            assert done == "data: [DONE]"
            found = json.loads(error.removeprefix("data: "))["error"]
        else:
            assert answer.status_code == 500
            found = answer.json()["error"]
        assert found["code"] == "step_failed"
        assert "MemoryError" in found["message"]
        assert "secret" not in answer.text
        server.check_idle()
