"""Requests that are ended by neither their client nor themselves, what is left of an answer, and what is read ahead."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from nanoinfer.frontends.async_stream import AsyncStream, Delivery
from nanoinfer.requests.stream_pieces import StreamPiece
from nanoinfer.server.drain import Drain
from nanoinfer.server.errors import ApiError
from nanoinfer.server.generation import Generation
from nanoinfer.server.metrics import Metrics
from tests.helpers.engines import make_engine
from tests.helpers.servers import BODY, gated_server, let_in, patient_app
from tests.helpers.waiting import run, until


@pytest.mark.parametrize(("ends", "status", "code"), [(False, 500, "aborted"), (True, 503, "shutting_down")])
def test_a_request_that_is_aborted_from_inside_is_told_why(ends: bool, status: int, code: str) -> None:
    with gated_server() as (server, gate, engine), ThreadPoolExecutor(2) as threads:
        answer = threads.submit(server.post, "/v1/completions", {**BODY, "max_tokens": 60})
        let_in(server, gate, engine, 1)
        until(lambda: server.service.open)
        (generation,) = server.service.open
        if ends:
            server.end()
            until(lambda: server.service.drain.is_draining)
        doors = server.service.engine
        aborts = threads.submit(server.call, doors.abort(generation.streams[0].request_id))  # type: ignore[attr-defined]
        until(lambda: aborts.done() or doors._door.loop._commands.qsize())  # type: ignore[attr-defined]
        gate.open()
        aborts.result()
        assert (answer.result().status_code, answer.result().json()["error"]["code"]) == (status, code)


@pytest.mark.parametrize("ends", [False, True])
def test_only_what_the_drain_has_ended_is_told_of_the_end(ends: bool) -> None:
    """Whoever else cancels a task means it: a cancelled task that goes on would hang whoever waits for its end."""

    async def cancelled() -> tuple[BaseException | None, int]:
        drain = Drain()

        async def serve() -> None:
            with drain.inside(lambda: False):
                await asyncio.Event().wait()

        task = asyncio.create_task(serve())
        await asyncio.sleep(0)
        drain.end() if ends else task.cancel()
        (raised,) = await asyncio.gather(task, return_exceptions=True)
        return raised, drain.serving

    raised, serving = run(cancelled)
    assert type(raised) is (ApiError if ends else asyncio.CancelledError)
    assert serving == 0


def test_nothing_waits_for_a_client_that_has_its_answer() -> None:
    """Whatever the ASGI server does with `receive` then: here it never returns."""
    content = json.dumps({**BODY, "max_tokens": 2}).encode()
    messages: list[Any] = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive() -> Any:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop()

    async def serve() -> tuple[int, list[str]]:
        statuses: list[int] = []

        async def send(message: Any) -> None:
            statuses.extend([message["status"]] if "status" in message else [])

        headers = [(b"host", b"test"), (b"content-type", b"application/json")]
        scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": "/v1/completions", "headers": headers}
        await patient_app(make_engine())(
            {**scope, "query_string": b"", "raw_path": b"", "scheme": "http"}, receive, send
        )
        await asyncio.sleep(0)  # what was cancelled ends now
        return statuses[0], [str(task.get_coro()) for task in asyncio.all_tasks()]

    status, tasks = run(serve)
    assert status == 200
    assert not [task for task in tasks if "_watch" in task]


class EndlessStream:
    """Has a new piece whenever it is asked."""

    final, reads = None, 0

    async def read(self) -> list[Any]:
        await asyncio.sleep(0)
        self.reads += 1
        return [SimpleNamespace(index=0, token_ids=[self.reads], cached_tokens=0, finish_reason=None)]


def test_of_several_streams_no_more_is_read_than_somebody_asks_for() -> None:
    """What is read ahead would hide from the engine that the client is slow."""

    async def read(times: int) -> list[int]:
        streams = [EndlessStream(), EndlessStream()]
        generation = Generation(SimpleNamespace(params=SimpleNamespace(n=1)), streams, Metrics("x").token_gaps)  # type: ignore[arg-type]
        for _ in range(times):
            await generation.read()
        for _ in range(100):
            await asyncio.sleep(0)
        generation.stop_reading()
        return [stream.reads for stream in streams]

    assert sum(run(lambda: read(5))) <= 5 + 2 + 2, "two in the queue, and one in the hands of each reader"


def test_a_request_that_is_held_goes_on_when_half_of_what_may_be_unread_is_left() -> None:
    async def hold_and_read() -> list[tuple[bool, int]]:
        said: list[tuple[bool, int]] = []
        delivery = Delivery(asyncio.get_running_loop(), 6, lambda it, hold: said.append((hold, it.queue.qsize())))
        stream = AsyncStream(delivery, 0, lambda delivery, keep: None)
        for token in range(6):
            delivery.put(StreamPiece(0, 0, "", [token], None, 1, 0, None, None))
        for _ in range(6):
            await anext(stream)
        return said

    assert run(hold_and_read) == [(True, 6), (False, 3)]
