"""Queues, deadlines, clients that go, clients that do not read, and the end of a server. A gate decides when passes run."""

import asyncio
import json
import logging
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from nanoinfer import Engine
from nanoinfer.server import make_app
from tests.helpers.async_engines import Gate, gated
from tests.helpers.engines import Clock
from tests.helpers.servers import Running, read_all, request_bytes, running, wait_until

BODY = {"model": "nanoinfer", "prompt": "a", "max_tokens": 8, "temperature": 0}


@contextmanager
def gated_server(
    is_open: bool = False, settings: dict[str, Any] | None = None, **options: Any
) -> Iterator[tuple[Running, Gate, Engine]]:
    engine, gate = gated(is_open, **options)
    with running(make_app(engine, **(settings or {}))) as server:
        try:
            yield server, gate, engine
        finally:
            gate.open()


def send(sock: socket.socket, body: dict[str, Any], *headers: str) -> None:
    sock.sendall(request_bytes("/v1/completions", json.dumps(body).encode(), *headers))


def queued(engine: Engine, count: int) -> bool:
    return len(engine.open_requests.groups) == count


def let_in(server: Running, gate: Gate, engine: Engine, count: int) -> None:
    """Let the passes through after which the engine adds requests, until `count` of them are queued: only when one has
    been posted, for each pass brings those that run nearer to their end."""
    commands = server.service.engine._thread._commands
    while not queued(engine, count):
        wait_until(lambda: queued(engine, count) or commands.qsize())
        if not queued(engine, count):
            passes = gate.passes
            gate.let_one_through()
            wait_until(lambda: gate.passes > passes)  # noqa: B023


def all_closed(server: Running) -> bool:
    """Everything that is open is to be aborted, when the pass ends."""
    return all(generation.closed_by for generation in server.service.open)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompts", ["a", ["a", "b"]])
def test_a_client_that_goes_is_aborted_within_a_step(stream: bool, prompts: Any) -> None:
    with gated_server() as (server, gate, engine):
        sock = server.connect()
        send(sock, {**BODY, "prompt": prompts, "stream": stream, "max_tokens": 40})
        wait_until(lambda: server.service.open)
        sock.close()
        wait_until(lambda: all_closed(server))
        gate.let_one_through()
        wait_until(lambda: not server.service.open)
        assert (engine.stats().aborted, gate.passes) == (len(prompts), 1)
        wait_until(lambda: server.service.metrics.responses["0"] == 1)  # it was not answered
        gate.open()
        server.check_idle()
        assert set(server.service.metrics.responses) <= {"0", "200"}, "a client that goes is no error of the server"
        assert server.metric('nanoinfer:requests_aborted_total{model_name="nanoinfer",reason="disconnect"}') == 1


def test_a_client_that_goes_before_its_request_has_begun_is_aborted_too() -> None:
    with gated_server(rows=1) as (server, gate, engine):
        first = server.connect()
        send(first, {**BODY, "max_tokens": 60})
        wait_until(lambda: queued(engine, 1))
        second = server.connect()
        send(second, BODY)
        let_in(server, gate, engine, 2)
        second.close()
        wait_until(lambda: any(generation.closed_by for generation in server.service.open))
        gate.open()
        answer = first.recv(65536)
        assert b"200 OK" in answer
        first.close()
        server.check_idle()
        assert engine.stats().aborted == 1


def test_a_full_queue_says_when_to_come_again() -> None:
    with gated_server(rows=1, max_queue=2) as (server, gate, engine), ThreadPoolExecutor(4) as threads:
        answers = [threads.submit(server.post, "/v1/completions", {**BODY, "max_tokens": 60})]
        wait_until(lambda: len(engine.scheduler.running) == 1)
        answers += [threads.submit(server.post, "/v1/completions", BODY) for _ in range(2)]
        let_in(server, gate, engine, 3)
        late = threads.submit(server.post, "/v1/completions", {**BODY, "prompt": ["c", "d"]})
        wait_until(late.done)
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
        wait_until(lambda: len(engine.scheduler.running) == 1)
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
        with httpx.stream("POST", f"{server.url}/v1/completions", json={**BODY, "stream": True}, timeout=30) as answer:
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


def test_a_reader_that_does_not_read_is_paused_and_goes_on_when_it_reads() -> None:
    """The bound is on unread pieces. A client that reads nothing fills the buffers first, so this uses the application
    itself, whose `send` waits."""
    engine, gate = gated(True)
    app = make_app(engine, max_unread=4)
    service = app.state.service

    async def talk() -> bytes:
        sent: list[bytes] = []
        go = asyncio.Event()
        body = json.dumps({**BODY, "max_tokens": 40, "stream": True}).encode()
        asked = False

        async def receive() -> dict[str, Any]:
            nonlocal asked
            if asked:
                await asyncio.Event().wait()
            asked = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.body":
                sent.append(message["body"])
                await go.wait()

        headers = [(b"host", b"test"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers, "query_string": b""}
        task = asyncio.create_task(
            app({**scope, "root_path": "", "http_version": "1.1", "scheme": "http"}, receive, send)
        )
        while not (await service.engine.stats()).paused:
            await asyncio.sleep(0.001)
        (generation,) = service.open
        unread = generation.streams[0]._delivery.queue.qsize()
        assert 4 <= unread <= 8, "a step or two may come before the pause"
        assert (await service.engine.stats()).request_slots == 0, "it holds no slots meanwhile"
        passes = gate.passes
        await asyncio.sleep(0.02)
        assert gate.passes == passes
        go.set()
        await task
        await service.close()
        return b"".join(sent)

    events = asyncio.run(asyncio.wait_for(talk(), 30)).decode().split("\n\n")
    texts = [json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events[:-2]]
    assert "".join(texts) == "".join(chr(98 + i) for i in range(40) if 98 + i < 128) + "".join(map(chr, range(10)))


def test_a_client_that_never_reads_is_cut_off() -> None:
    settings = {"write_timeout_s": 0.2, "max_unread": 8, "max_body_bytes": 2**20}
    with gated_server(is_open=True, settings=settings, slots=4096, rows=32) as (server, _, engine):
        listener = server.server.servers[0].sockets[0]
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # for the connections that it accepts
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", server.port))
        body = {**BODY, "prompt": ["a"] * 100, "n": 2, "logprobs": 5, "stream": True, "max_tokens": 60}
        send(sock, body)
        name = 'nanoinfer:requests_aborted_total{model_name="nanoinfer",reason="slow_reader"}'
        wait_until(lambda: server.metric(name) == 1)
        server.check_idle()
        read_all(sock)
        sock.close()
        assert engine.stats().aborted > 0


def test_a_server_that_ends_serves_what_it_accepted_and_refuses_newcomers() -> None:
    with gated_server() as (server, gate, engine), ThreadPoolExecutor(3) as threads:
        bodies = [{**BODY, "max_tokens": 60, "stream": stream} for stream in (True, False)]
        answers = [threads.submit(server.post, "/v1/completions", body) for body in bodies]
        let_in(server, gate, engine, 2)
        server.end()
        wait_until(lambda: server.service.drain.is_draining)
        refused = server.post("/v1/completions", BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert refused.headers["retry-after"] == "1"
        assert server.get("/health").status_code == 503
        gate.open()
        stream, whole = (answer.result() for answer in answers)
        assert whole.json()["usage"]["completion_tokens"] == 60
        assert stream.text.endswith("data: [DONE]\n\n")
        server.thread.join(20)
        assert not server.thread.is_alive()
        engine.check_integrity()
        assert engine.stats().free_slots == engine.stats().total_slots


def test_after_the_drain_timeout_requests_are_told_that_they_were_ended() -> None:
    with gated_server(settings={"drain_timeout_s": 0.05}) as (server, gate, engine), ThreadPoolExecutor(3) as threads:
        bodies = [{**BODY, "max_tokens": 60}, {**BODY, "max_tokens": 60, "stream": True}]
        answers = [threads.submit(server.post, "/v1/completions", body) for body in bodies]
        let_in(server, gate, engine, 2)
        wait_until(lambda: len(server.service.open) == 2)
        server.end()
        wait_until(lambda: [generation.closed_by for generation in server.service.open] == ["shutdown"] * 2)
        gate.let_one_through()
        for answer in answers:
            assert '"code":"shutting_down"' in answer.result().text.replace('": "', '":"')
        gate.open()
        server.thread.join(20)
        assert not server.thread.is_alive()
        assert engine.stats().free_slots == engine.stats().total_slots


class Breaking:
    """A tokenizer that misbehaves on one text."""

    def __init__(self, tokenizer: Any, how: Any):
        self._tokenizer, self._how = tokenizer, how

    def encode(self, text: str, *more: Any) -> list[int]:
        return self._how() if text == "break" else self._tokenizer.encode(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


@pytest.mark.parametrize(("error", "status"), [(ValueError("bad"), 400), (KeyError("k"), 400), (RecursionError(), 400)])
def test_a_tokenizer_that_raises_ends_one_request(error: Exception, status: int) -> None:
    def fail() -> list[int]:
        raise error

    with gated_server(is_open=True) as (server, _, engine):
        engine.builder.tokenizer = Breaking(engine.builder.tokenizer, fail)  # type: ignore[assignment]
        answer = server.post("/v1/completions", {**BODY, "prompt": "break"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, "prompt")
        server.check_idle()


def test_tokenizers_that_hang_end_their_requests_and_do_not_pile_up() -> None:
    free, hanging, most = threading.Event(), [], []

    def hang() -> list[int]:
        hanging.append(1)
        most.append(len(hanging))
        free.wait(60)
        hanging.pop()
        return [1]

    with gated_server(is_open=True, settings={"preparation_timeout_s": 0.1}) as (server, _, engine):
        engine.builder.tokenizer = Breaking(engine.builder.tokenizer, hang)  # type: ignore[assignment]
        with ThreadPoolExecutor(12) as threads:
            sent = [threads.submit(server.post, "/v1/completions", {**BODY, "prompt": "break"}) for _ in range(20)]
            answers = [each.result() for each in sent]
        codes = Counter((answer.status_code, answer.json()["error"]["code"]) for answer in answers)
        assert codes == {(500, "preparation_timeout"): 8, (503, "overloaded"): 12}
        assert max(most) == 8
        server.check_idle()  # with a prompt of token ids, which needs no tokenizer
        free.set()
        wait_until(lambda: not hanging)
        server.service.background._timeout_s = 30  # from now on, time shall not matter
        assert server.post("/v1/completions", {**BODY, "prompt": "break"}).status_code == 200


def test_grammars_have_threads_and_a_deadline_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()
    with gated_server(is_open=True, settings={"preparation_timeout_s": 0.1}) as (server, _, engine):
        monkeypatch.setattr(engine.grammars, "prepare", lambda params, name: free.wait(60))
        slow = {**BODY, "prompt": [1], "guided_regex": "a"}
        with ThreadPoolExecutor(12) as threads:
            sent = [threads.submit(server.post, "/v1/completions", slow) for _ in range(8)]
            answers = [each.result() for each in sent]
        codes = Counter((answer.status_code, answer.json()["error"]["code"]) for answer in answers)
        assert codes == {(500, "preparation_timeout"): 4, (503, "overloaded"): 4}
        monkeypatch.undo()
        assert server.post("/v1/completions", {**BODY, "prompt": "b"}).status_code == 200  # the tokenizer is free
        free.set()
        wait_until(lambda: server.post("/v1/completions", slow).status_code != 503)
        server.check_idle()


@pytest.mark.parametrize("path", ["/v1/completions", "/health"])
def test_after_the_drain_timeout_a_request_whose_body_is_still_coming_is_told(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("nanoinfer.server.run.SECONDS_FOR_LAST_ANSWERS", 0.5)
    with gated_server(settings={"drain_timeout_s": 0.05}) as (server, _, _):
        with server.connect() as sock:
            sock.sendall(request_bytes(path, b"{", length=50))
            wait_until(lambda: server.server.server_state.tasks)
            server.end()
            answer = read_all(sock)
        assert answer.startswith(b"HTTP/1.1 503 "), answer
        assert b'"code": "shutting_down"' in answer
        server.thread.join(20)
        assert not server.thread.is_alive()
    if path == "/v1/completions":  # nobody waits for the others, which uvicorn cancels with a line in the log
        assert not [record for record in caplog.records if record.name == "uvicorn.error"]


def test_after_the_drain_timeout_a_request_that_is_being_prepared_is_told() -> None:
    free, has_begun = threading.Event(), threading.Event()

    def hang() -> list[int]:
        has_begun.set()
        free.wait(60)
        return [1]

    with gated_server(settings={"drain_timeout_s": 0.05}) as (server, _, engine), ThreadPoolExecutor(1) as threads:
        engine.builder.tokenizer = Breaking(engine.builder.tokenizer, hang)  # type: ignore[assignment]
        answer = threads.submit(server.post, "/v1/completions", {**BODY, "prompt": "break"})
        wait_until(has_begun.is_set)
        server.end()
        assert (answer.result().status_code, answer.result().json()["error"]["code"]) == (503, "shutting_down")
        free.set()
        server.thread.join(20)
        assert not server.thread.is_alive()
        engine.check_integrity()


def test_the_log_has_one_line_per_request_and_prompts_only_if_asked(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nanoinfer.access")
    for shown in (False, True):
        caplog.clear()
        with gated_server(is_open=True, settings={"show_prompts": shown}) as (server, _, _):
            for _ in range(2):
                server.post("/v1/completions", {**BODY, "prompt": "hush\nhush"}, headers={"x-request-id": "mine"})
            server.post("/v1/completions", {"prompt": "hush"})
        first, second, wrong = [record.getMessage() for record in caplog.records if record.name == "nanoinfer.access"]
        assert first.startswith(
            "127.0.0.1 POST /v1/completions 200 id=mine model=nanoinfer prompt=9 cached=0 output=8 ttft_ms="
        )
        assert " cached=8 " in second
        assert " end=length" in first
        assert " 400 " in wrong
        assert ("hush\\nhush" in first) == shown
        assert "hush" not in wrong
        assert "\n" not in first
