"""When a client's time to read is over. Loop and transport are stand-ins, so that no clock decides."""

from collections.abc import Callable
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from uvicorn.server import ServerState

from nanoinfer.server import ServerSettings
from nanoinfer.server.connections import Connection, connection_class


class HandLoop:
    """A loop whose timers run when the test says so."""

    def __init__(self) -> None:
        self.timers: list[HandTimer] = []

    def call_later(self, seconds: float, call: Callable[..., None], *args: Any) -> "HandTimer":
        self.timers.append(HandTimer(seconds, call, args))
        return self.timers[-1]

    def run_timer(self, seconds: float) -> None:
        (due,) = [timer for timer in self.timers if timer.seconds == seconds]
        self.timers.remove(due)
        due.call(*due.args)


class HandTimer:
    def __init__(self, seconds: float, call: Callable[..., None], args: tuple[Any, ...]):
        self.seconds, self.call, self.args = seconds, call, args

    def cancel(self) -> None:
        self.seconds = 0


class HandTransport:
    """`unread`: how many bytes the client has not taken yet."""

    def __init__(self) -> None:
        self.unread, self.is_aborted = 100_000, False

    def get_write_buffer_size(self) -> int:
        return self.unread

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True


@pytest.fixture
def paused() -> tuple[Connection, HandLoop, HandTransport]:
    """A connection whose buffers are full."""
    loop, transport = HandLoop(), HandTransport()
    config = uvicorn.Config(FastAPI(), log_config=None)
    connection = connection_class(ServerSettings(write_timeout_s=7))(config, ServerState(), {}, loop)  # type: ignore[arg-type]
    connection.connection_made(transport)  # type: ignore[arg-type]
    connection.pause_writing()
    return connection, loop, transport


def test_a_client_that_reads_slowly_is_not_cut_off(paused: tuple[Connection, HandLoop, HandTransport]) -> None:
    _, loop, transport = paused
    for _ in range(20):
        transport.unread -= 1
        loop.run_timer(7)
        assert not transport.is_aborted
    loop.run_timer(7)
    assert transport.is_aborted, "now it has read nothing"


def test_a_client_that_reads_everything_is_left_alone(paused: tuple[Connection, HandLoop, HandTransport]) -> None:
    connection, loop, transport = paused
    connection.resume_writing()
    assert not [timer for timer in loop.timers if timer.seconds == 7]
    connection.pause_writing()
    loop.run_timer(7)
    assert transport.is_aborted
