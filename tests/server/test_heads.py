"""HEAD is GET without the body, whichever route it asks for."""

import json
from typing import Any

import httpx
import pytest

from nanoinfer.server.heads import Heads
from tests.helpers.engines import make_engine
from tests.helpers.servers import Running, patient_app, read_all
from tests.helpers.waiting import run
from tests.server.test_lock import ask, bearer

PATHS = (
    "/health",
    "/version",
    "/v1/models",
    "/v1/models/story",
    "/openapi.json",
    "/",
    "/static/page.css",
    "/v1/nothing",
)


@pytest.mark.parametrize("path", PATHS)
def test_head_has_the_status_and_the_headers_of_get_and_no_body(server: Running, path: str) -> None:
    asked = {"x-request-id": "one"}
    got, head = server.get(path, headers=asked), httpx.head(server.url + path, headers=asked, timeout=120)
    assert (head.status_code, head.content) == (got.status_code, b"")
    own = {name: value for name, value in head.headers.items() if name != "date"}
    assert own == {name: value for name, value in got.headers.items() if name != "date"}


def test_the_connection_goes_on_after_a_head(server: Running) -> None:
    with server.connect() as sock:
        for method, more in (("HEAD", ""), ("GET", "connection: close\r\n")):
            sock.sendall(f"{method} /health HTTP/1.1\r\nhost: localhost\r\n{more}\r\n".encode())
        first, second, body = read_all(sock).split(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 200")
    assert second.startswith(b"HTTP/1.1 200"), "the head of the first answer is followed by that of the second"
    assert json.loads(body) == {"status": "ok"}


def test_a_stream_without_an_end_is_left_after_its_head(server: Running) -> None:
    head = httpx.head(f"{server.url}/live/events", timeout=120)
    assert head.status_code == 200
    assert head.headers["content-type"].startswith("text/event-stream")
    assert head.content == b""


def test_what_is_no_get_is_refused_as_before() -> None:
    app = patient_app(make_engine(), api_keys=["key"])
    answer = ask(app, "HEAD", "/v1/completions", headers=bearer("key"))
    assert (answer.status_code, answer.headers["allow"], answer.content) == (405, "POST", b"")
    answer = ask(app, "HEAD", "/metrics")
    assert (answer.status_code, answer.content) == (401, b"")
    assert ask(app, "HEAD", "/health").status_code == 200


def test_whoever_answers_is_told_that_nobody_reads_and_is_not_sent_on() -> None:
    seen: list[Any] = []

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["method"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        seen.append((await receive())["type"])

    async def receive() -> Any:
        assert sent, "before the answer"
        return {"type": "http.disconnect"}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    run(lambda: Heads(stream)({"type": "http", "method": "HEAD"}, receive, send))
    assert seen == ["GET", "http.disconnect"]
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert not sent[1].get("more_body")
    assert not sent[1].get("body")
