"""A server in a thread of its own: it is up when `start` returns, and its end loses nothing."""

import asyncio

import httpx
import pytest

from nanoinfer import LLM
from nanoinfer.server import make_app
from nanoinfer.server.in_thread import ServerThread
from tests.helpers.waiting import HANG_S


def test_it_serves_while_the_block_runs_and_calls_run_in_its_event_loop() -> None:
    with ServerThread(make_app(LLM("story", max_total_tokens=256))) as server:
        assert httpx.get(f"{server.address}/health", timeout=HANG_S).json() == {"status": "ok"}
        assert server.address.endswith(f":{server.port}")
        assert server.call(server.service.engine.stats()).running == 0

        async def fail() -> None:
            await asyncio.sleep(0)
            raise KeyError("here")

        with pytest.raises(KeyError, match="here"):
            server.call(fail())
    assert server.wait(0)
    assert server.service.engine.is_closed
    server.end()  # nothing is left to end
    with pytest.raises(RuntimeError, match="the server is not running"):
        server.call(server.service.engine.stats())


def test_a_port_in_use_is_an_error_at_once() -> None:
    app = make_app(LLM("story", max_total_tokens=256))
    with ServerThread(app) as server, pytest.raises(RuntimeError, match="the server could not start"):
        ServerThread(make_app(LLM("story", max_total_tokens=256)), port=server.port).start()
