"""Clients that go, and clients that do not read: nothing is generated for them, and they hold nothing."""

import asyncio
import json
import socket
from typing import Any

import openai
import pytest

from nanoinfer import LLM, AsyncEngine
from tests.helpers.async_engines import gated
from tests.helpers.servers import BODY, Running, gated_server, in_a_pass, let_in, patient_app, read_all, send
from tests.helpers.waiting import HANG_S, run, until, until_async
from tests.server.test_lock import ask


def all_closed(server: Running) -> bool:
    """Everything that is open is to be aborted, when the pass ends."""
    return all(server.closed_by())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompts", ["a", ["a", "b"]])
def test_a_client_that_goes_is_aborted_within_a_step(stream: bool, prompts: Any) -> None:
    with gated_server() as (server, gate, engine):
        sock = server.connect()
        send(sock, {**BODY, "prompt": prompts, "stream": stream, "max_tokens": 40})
        until(lambda: server.service.open and in_a_pass(engine))
        sock.close()
        until(lambda: all_closed(server))
        gate.let_one_through()
        until(lambda: not server.service.open)
        assert (engine.stats().aborted, gate.passes) == (len(prompts), 1)
        until(lambda: server.service.metrics.responses["0"] == 1)  # it was not answered
        gate.open()
        server.check_idle()
        assert set(server.service.metrics.responses) <= {"0", "200"}, "a client that goes is no error of the server"
        assert server.metric('nanoinfer:requests_aborted_total{model_name="nanoinfer",reason="disconnect"}') == 1


def test_a_client_that_goes_before_its_request_has_begun_is_aborted_too() -> None:
    with gated_server(rows=1) as (server, gate, engine):
        first = server.connect()
        send(first, {**BODY, "max_tokens": 60})
        until(lambda: in_a_pass(engine))
        second = server.connect()
        send(second, BODY)
        let_in(server, gate, engine, 2)
        second.close()
        until(lambda: any(server.closed_by()))
        gate.open()
        answer = first.recv(65536)
        assert b"200 OK" in answer
        first.close()
        server.check_idle()
        assert engine.stats().aborted == 1


def test_a_stream_that_openais_client_closes_is_aborted() -> None:
    with gated_server() as (server, gate, engine):
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=HANG_S)
        gate.let_one_through()
        stream = client.completions.create(model="nanoinfer", prompt="a", max_tokens=60, temperature=0, stream=True)
        assert next(stream).choices[0].text == "b"
        stream.close()
        until(lambda: all_closed(server))
        gate.open()
        until(lambda: not server.service.open)
        assert engine.stats().aborted == 1
        assert gate.passes <= 3, "the pass that ran, and one that it may have met"
        server.check_idle()
        client.close()


@pytest.mark.parametrize("path", ["completions", "chat.completions"])
def test_a_call_that_is_cancelled_in_openais_client_is_aborted(path: str) -> None:
    with gated_server() as (server, gate, engine):
        engine.builder.chat_prompt = lambda *args: [97]  # type: ignore[assignment, method-assign, return-value]

        async def cancel() -> None:
            async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
                if path == "completions":
                    call = client.completions.create(model="nanoinfer", prompt="a", max_tokens=60)
                else:
                    messages: Any = [{"role": "user", "content": "a"}]
                    call = client.chat.completions.create(model="nanoinfer", messages=messages, max_tokens=60)
                task = asyncio.ensure_future(call)
                await until_async(lambda: server.service.open and in_a_pass(engine))
                task.cancel()
                await asyncio.wait([task])
                await until_async(lambda: all_closed(server))

        run(cancel)
        gate.open()
        until(lambda: not server.service.open)
        assert (engine.stats().aborted, engine.stats().finished) == (1, 0)


def test_a_reader_that_does_not_read_is_paused_and_goes_on_when_it_reads() -> None:
    """The bound is on unread pieces. A client that reads nothing fills the buffers first, so this uses the application
    itself, whose `send` waits."""
    engine, gate = gated(False)
    app = patient_app(engine, max_unread=4)
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
        await until_async(lambda: service.open)
        (generation,) = service.open
        unread = generation.streams[0]._delivery.queue
        gate.let_one_through()
        await until_async(lambda: sent, "the first token")
        for i in range(1, 5):
            gate.let_one_through()
            await until_async(lambda: unread.qsize() == i)  # noqa: B023
        gate.open()  # the fourth unread token has paused the request; one more pass may have begun before
        stats = await service.engine.stats()
        assert (stats.paused, stats.request_slots) == (1, 0), "it holds no slots meanwhile"
        for _ in range(3):
            await service.engine.stats()  # answered between two passes, if there are any
        assert unread.qsize() == gate.passes - 1 in (4, 5)
        go.set()
        await task
        await service.close()
        return b"".join(sent)

    events = run(talk).decode().split("\n\n")
    texts = [json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events[:-2]]
    assert "".join(texts) == "".join(chr(98 + i) for i in range(40) if 98 + i < 128) + "".join(map(chr, range(10)))


def test_what_may_be_unread_is_bounded_with_a_grammar_too(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds: list[Any] = []

    add_prepared = AsyncEngine.add_prepared

    async def noted(self: AsyncEngine, groups: Any, max_unread: int | None = None) -> Any:
        bounds.append(max_unread)
        return await add_prepared(self, groups, max_unread)

    monkeypatch.setattr(AsyncEngine, "add_prepared", noted)
    app = patient_app(LLM("story", max_total_tokens=256), max_unread=7)
    for more in ({}, {"guided_regex": "a"}):
        answer = ask(app, "POST", "/v1/completions", json={**BODY, "model": "story", "stream": True, **more})
        assert answer.status_code == 200
    assert bounds == [7, 7]


def test_a_client_that_never_reads_is_cut_off() -> None:
    settings = {"max_unread": 8, "max_body_bytes": 2**20}
    with gated_server(is_open=True, settings=settings, slots=4096, rows=32) as (server, _, engine):
        listener = server.server.servers[0].sockets[0]
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # for the connections that it accepts
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", server.port))
        body = {**BODY, "prompt": ["a"] * 100, "n": 2, "logprobs": 5, "stream": True, "max_tokens": 60}
        send(sock, body)
        name = 'nanoinfer:requests_aborted_total{model_name="nanoinfer",reason="slow_reader"}'

        def is_cut_off() -> bool:
            server.write_time_is_over()
            return server.metric(name) == 1

        until(is_cut_off)
        server.check_idle()
        read_all(sock)
        sock.close()
        assert engine.stats().aborted > 0
