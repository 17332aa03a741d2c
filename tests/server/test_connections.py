"""What a connection does with bytes that come too early, and when it reads no more. Timers: test_connection_timers.py."""

from typing import Any

import pytest

from tests.helpers.hand_connections import IDLE, REQUEST, Opened, opened
from tests.helpers.servers import request_bytes
from tests.helpers.waiting import run, until_async

NEXT = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


class Pondering(Opened):
    """Its application never answers, and waits for the client to go."""

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            self.calls += 1


@pytest.mark.parametrize("surplus", [b"\r\n", NEXT, NEXT[:-1]])
def test_a_client_that_sends_more_before_its_answer_is_still_listened_to(surplus: bytes) -> None:
    """Otherwise nobody would see it go, and its answer would be computed to the end."""

    async def body() -> None:
        client = Pondering()
        client.receive(REQUEST)
        await until_async(lambda: client.calls == 1)
        client.receive(surplus)
        assert client.transport.is_reading
        client.connection.connection_lost(None)
        await until_async(lambda: not client.connection.tasks)

    run(body)


@opened
async def test_empty_lines_between_requests_mean_nothing(client: Opened) -> None:
    client.receive(REQUEST)
    client.receive(b"\r\n")
    await client.answered(1)
    client.receive(b"\r\n\r\n")
    assert client.loop.waits == [IDLE]
    client.receive(b"\r\n" + REQUEST)
    await client.answered(2)
    client.receive(request_bytes("/", b"", "connection: close"))
    client.receive(b"\r\n")
    await client.answered(3)
    assert client.transport.written.count(b"HTTP/1.1 ") == 3


def test_what_comes_before_its_turn_is_bounded() -> None:
    async def body() -> None:
        client = Pondering()
        client.receive(REQUEST)
        await until_async(lambda: client.calls == 1)
        client.receive(b"x" * 65_536)
        assert client.transport.is_reading
        client.receive(b"x")
        assert not client.transport.is_reading
        client.connection.connection_lost(None)

    run(body)


def test_a_body_that_nobody_takes_is_not_read_on() -> None:
    async def body() -> None:
        client = Pondering()
        client.receive(request_bytes("/", b"x" * 70_000, length=200_000))
        assert not client.transport.is_reading
        await until_async(lambda: client.calls == 1)
        assert client.transport.is_reading
        client.connection.connection_lost(None)

    run(body)
