"""Servers that tests talk to: a real one in a thread, over real sockets."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from fastapi import FastAPI

from nanoinfer.server.in_thread import ServerThread


class Running:
    """A server that is up: its address, and ways to look behind it."""

    def __init__(self, app: FastAPI, serving: ServerThread):
        self.app, self.service = app, serving.service
        self.url, self.port, self.end = serving.address, serving.port, serving.end
        self.server, self.thread = serving._server, serving._thread

    def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=60, **more)

    def get(self, path: str, **more: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=60, **more)

    def connect(self) -> socket.socket:
        """A connection that speaks bytes."""
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def metric(self, line_start: str) -> float:
        """The value of the metric whose line begins so."""
        lines = [line for line in self.get("/metrics").text.splitlines() if line.startswith(line_start)]
        assert len(lines) == 1, lines
        return float(lines[0].rpartition(" ")[2])

    def check_idle(self) -> None:
        """Nothing is left of any request, every slot has its owner, and the next client is served."""
        wait_until(lambda: not self.service.open and not self.service.drain.serving)
        wait_until(lambda: not (stats := self.service.core.stats()).running and not stats.waiting and not stats.paused)
        self.service.core.check_integrity()
        stats = self.service.core.stats()
        assert stats.free_slots + stats.evictable_slots == stats.total_slots
        answer = self.post("/v1/completions", {"model": self.service.base_name, "prompt": [1, 2, 3], "max_tokens": 2})
        assert answer.status_code == 200, answer.text


@contextmanager
def running(app: FastAPI) -> Iterator[Running]:
    """Serve an application on a free port while the block runs."""
    serving = ServerThread(app).start()
    up = Running(app, serving)
    try:
        yield up
    finally:
        up.end()
        up.end()  # tests do not wait for what is still served
        assert serving.wait(30), "the server does not end"


def wait_until(condition: Callable[[], Any], timeout_s: float = 30) -> None:
    """Look again and again until it is true."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it never becomes true"
        time.sleep(0.005)


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
