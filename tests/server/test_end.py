"""The end of a server: what it accepted is served, or told that it is not; newcomers are refused."""

import io
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from nanoinfer import Engine
from tests.helpers.servers import BODY, BreakingTokenizer, gated_server, let_in, read_all, request_bytes
from tests.helpers.waiting import HANG_S, until


def test_a_server_that_ends_serves_what_it_accepted_and_refuses_newcomers() -> None:
    with gated_server() as (server, gate, engine), ThreadPoolExecutor(3) as threads:
        bodies = [{**BODY, "max_tokens": 60, "stream": stream} for stream in (True, False)]
        answers = [threads.submit(server.post, "/v1/completions", body) for body in bodies]
        let_in(server, gate, engine, 2)
        server.end()
        until(lambda: server.service.drain.is_draining)
        refused = server.post("/v1/completions", BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert refused.headers["retry-after"] == "1"
        assert server.get("/health").status_code == 503
        gate.open()
        stream, whole = (answer.result() for answer in answers)
        assert whole.json()["usage"]["completion_tokens"] == 60
        assert stream.text.endswith("data: [DONE]\n\n")
        assert server.wait(HANG_S)
        engine.check_integrity()
        assert free(engine) == engine.stats().total_slots


def free(engine: Engine) -> int:
    """Slots that nobody holds: an engine that the server has not loaded keeps its tree."""
    stats = engine.stats()
    return stats.free_slots + stats.evictable_slots


def test_it_says_what_it_waits_for_and_told_to_end_once_more_waits_no_longer() -> None:
    with gated_server() as (server, gate, engine), ThreadPoolExecutor(2) as threads:
        server.server._out = told = io.StringIO()
        answers = [threads.submit(server.post, "/v1/completions", {**BODY, "max_tokens": 60}) for _ in range(2)]
        let_in(server, gate, engine, 2)
        server.end()
        until(told.getvalue)
        assert told.getvalue().startswith("nanoinfer is ending: it waits for 2 requests, until ")
        server.end()
        until(lambda: server.closed_by() == ["shutdown"] * 2)
        gate.open()
        for answer in answers:
            assert (answer.result().status_code, answer.result().json()["error"]["code"]) == (503, "shutting_down")
        assert server.wait(HANG_S)


def test_after_the_drain_timeout_requests_are_told_that_they_were_ended() -> None:
    with gated_server(settings={"drain_timeout_s": 0.05}) as (server, gate, engine), ThreadPoolExecutor(3) as threads:
        bodies = [{**BODY, "max_tokens": 60}, {**BODY, "max_tokens": 60, "stream": True}]
        answers = [threads.submit(server.post, "/v1/completions", body) for body in bodies]
        let_in(server, gate, engine, 2)
        until(lambda: len(server.service.open) == 2)
        server.end()
        until(lambda: server.closed_by() == ["shutdown"] * 2)
        gate.let_one_through()
        for answer in answers:
            assert '"code":"shutting_down"' in answer.result().text.replace('": "', '":"')
        gate.open()
        assert server.wait(HANG_S)
        assert free(engine) == engine.stats().total_slots


def test_after_the_drain_timeout_a_request_whose_body_is_still_coming_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with gated_server(settings={"drain_timeout_s": 0.05}) as (server, _, _):
        with server.connect() as sock:
            sock.sendall(request_bytes("/v1/completions", b"{", length=50))
            until(lambda: server.server.server_state.tasks)
            server.end()
            answer = read_all(sock)
        assert answer.startswith(b"HTTP/1.1 503 "), answer
        assert b'"code": "shutting_down"' in answer
        assert server.wait(HANG_S)
    assert not [record for record in caplog.records if record.name == "uvicorn.error"], "uvicorn had nothing to cancel"


def test_after_the_drain_timeout_a_request_that_is_being_prepared_is_told() -> None:
    free, has_begun = threading.Event(), threading.Event()

    def hang() -> list[int]:
        has_begun.set()
        free.wait(HANG_S)
        return [1]

    with gated_server(settings={"drain_timeout_s": 0.05}) as (server, _, engine), ThreadPoolExecutor(1) as threads:
        engine.builder.tokenizer = BreakingTokenizer(engine.builder.tokenizer, hang)  # type: ignore[assignment]
        answer = threads.submit(server.post, "/v1/completions", {**BODY, "prompt": "break"})
        until(has_begun.is_set)
        server.end()
        assert (answer.result().status_code, answer.result().json()["error"]["code"]) == (503, "shutting_down")
        free.set()
        assert server.wait(HANG_S)
        engine.check_integrity()
