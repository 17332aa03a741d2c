"""Servers that tests talk to: a real one in a thread, over real sockets."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from fastapi import FastAPI

from nanoinfer import Engine
from nanoinfer.server import ServerThread, make_app
from nanoinfer.server.settings import SECONDS
from tests.helpers.async_engines import PassBarrier, with_barrier
from tests.helpers.waiting import HANG_S, run, until

BODY = {"model": "nanoinfer", "prompt": "a", "max_tokens": 8, "temperature": 0}


class Running:
    """A server that is up: its address, and ways to look behind it."""

    def __init__(self, app: FastAPI, serving: ServerThread):
        self.app, self.service = app, serving.service
        self.url, self.port, self.end = serving.url, serving.port, serving.end
        self.call, self.wait = serving.call, serving.wait
        self.server = serving._server

    def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=HANG_S, **more)

    def get(self, path: str, **more: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=HANG_S, **more)

    def connect(self) -> socket.socket:
        """A connection that speaks bytes."""
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=HANG_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def metric(self, line_start: str) -> float:
        """The value of the metric whose line begins so."""
        lines = [line for line in self.get("/metrics").text.splitlines() if line.startswith(line_start)]
        assert len(lines) == 1, lines
        return float(lines[0].rpartition(" ")[2])

    def closed_by(self) -> list[str | None]:
        """Of each open request, why it ends early. Asked in the event loop that ends them, where nothing is half done."""

        async def ask() -> list[str | None]:
            return [generation.closed_by for generation in self.service.open]

        return self.call(ask())

    def check_idle(self) -> None:
        """Nothing is left of any request, every slot has its owner, and the next client is served."""
        until(lambda: not self.service.open and not self.service.drain.serving)
        until(lambda: not (stats := self.service.core.stats()).running and not stats.waiting and not stats.paused)
        self.service.core.check_integrity()
        stats = self.service.core.stats()
        assert stats.free_slots + stats.evictable_slots == stats.total_slots
        answer = self.post("/v1/completions", {"model": self.service.base_name, "prompt": [1, 2, 3], "max_tokens": 2})
        assert answer.status_code == 200, answer.text


def patient_app(llm: Any, **settings: Any) -> FastAPI:
    """`make_app`, whose every time limit is as long as tests wait, where `settings` give no other one: no request fails
    because the machine is busy."""
    return make_app(llm, **{**dict.fromkeys(SECONDS, HANG_S), **settings})


def ask(app: FastAPI, method: str, path: str, base: str = "http://test", **more: Any) -> httpx.Response:
    """One request to an application, without its lifespan."""

    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=base) as client:
            return await client.request(method, path, **more)

    return run(send)


def sent_events(text: str) -> list[Any]:
    """What a stream of server-sent events has said, up to its `[DONE]`."""
    *events, done = (line.removeprefix("data: ") for line in text.splitlines() if line)
    assert done == "[DONE]"
    return [json.loads(event) for event in events]


@contextmanager
def running(app: FastAPI, port: int = 0) -> Iterator[Running]:
    """Serve an application while the block runs; `port`: 0 takes a free one."""
    serving = ServerThread(app, port).start()
    up = Running(app, serving)
    try:
        yield up
    finally:
        up.end()
        up.end()  # tests do not wait for what is still served
        assert serving.wait(HANG_S), "the server does not end"


@contextmanager
def server_behind_barrier(
    is_open: bool = False, settings: dict[str, Any] | None = None, **options: Any
) -> Iterator[tuple[Running, PassBarrier, Engine]]:
    """A server over a model that counts, whose passes the test lets through."""
    engine, barrier = with_barrier(is_open, **options)
    with running(patient_app(engine, **(settings or {}))) as server:
        try:
            yield server, barrier, engine
        finally:
            barrier.open()


def in_a_pass(engine: Engine) -> bool:
    """Whether a pass waits at the barrier: until it is let through, the engine's thread does nothing else."""
    barrier = engine.model_runner.model
    assert isinstance(barrier, PassBarrier)
    return barrier.arrivals > barrier.passes


def queued(engine: Engine, count: int) -> bool:
    return len(engine.open_requests.groups) == count


def let_in(server: Running, barrier: PassBarrier, engine: Engine, count: int) -> None:
    """Let the passes through after which the engine adds requests, until `count` of them are queued and the next pass
    waits: only when one has been posted, for each pass brings those that run nearer to their end."""
    commands = server.service.engine._client.loop._commands
    while not queued(engine, count):
        until(lambda: queued(engine, count) or (in_a_pass(engine) and commands.qsize()))
        if not queued(engine, count):
            passes = barrier.passes
            barrier.let_one_through()
            until(lambda: barrier.passes > passes)  # noqa: B023
    until(lambda: in_a_pass(engine))


def send(sock: socket.socket, body: dict[str, Any], *headers: str) -> None:
    """Send the body to the route of completions."""
    sock.sendall(request_bytes("/v1/completions", json.dumps(body).encode(), *headers))


class BreakingTokenizer:
    """A tokenizer that calls `how` for the text `break`."""

    def __init__(self, tokenizer: Any, how: Any):
        self._tokenizer, self._how = tokenizer, how

    def encode(self, text: str, *more: Any) -> list[int]:
        return self._how() if text == "break" else self._tokenizer.encode(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def request_bytes(path: str, body: bytes, *headers: str, length: int | None = None) -> bytes:
    """A POST as it goes over the wire."""
    size = len(body) if length is None else length
    lines = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json", f"content-length: {size}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


def read_all(sock: socket.socket) -> bytes:
    """Everything until the server closes the connection."""
    parts = []
    while True:
        try:
            part = sock.recv(65536)
        except ConnectionResetError:
            part = b""
        if not part:
            return b"".join(parts)
        parts.append(part)
