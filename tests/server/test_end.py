"""The end of a server: what it accepted is served, or told that it is not; newcomers are refused."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from nanoinfer import Engine
from nanoinfer.server.errors import ApiError
from nanoinfer.server.generation import Generation
from nanoinfer.server.metrics import Metrics
from nanoinfer.server.request_context import Drain, RequestContext
from tests.helpers.servers import BODY, BreakingTokenizer, gated_server, let_in, read_all, request_bytes
from tests.helpers.waiting import HANG_S, run, until


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


def test_told_to_end_once_more_it_waits_no_longer() -> None:
    with gated_server() as (server, gate, engine), ThreadPoolExecutor(2) as threads:
        answers = [threads.submit(server.post, "/v1/completions", {**BODY, "max_tokens": 60}) for _ in range(2)]
        let_in(server, gate, engine, 2)
        server.end()
        until(lambda: server.service.drain.is_draining)
        server.end()
        until(lambda: server.closed_by() == ["shutdown"] * 2)
        gate.open()
        for answer in answers:
            assert (answer.result().status_code, answer.result().json()["error"]["code"]) == (503, "shutting_down")
        assert server.wait(HANG_S)


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
        until(lambda: aborts.done() or doors._client.loop._commands.qsize())  # type: ignore[attr-defined]
        gate.open()
        aborts.result()
        assert (answer.result().status_code, answer.result().json()["error"]["code"]) == (status, code)


@pytest.mark.parametrize("ends", [False, True])
def test_only_what_the_drain_has_ended_is_told_of_the_end(ends: bool) -> None:
    """Whoever else cancels a task means it: a cancelled task that goes on would hang whoever waits for its end."""

    async def cancelled() -> tuple[BaseException | None, int]:
        drain = Drain()

        async def serve() -> None:
            with drain.inside(RequestContext()):
                await asyncio.Event().wait()

        task = asyncio.create_task(serve())
        await asyncio.sleep(0)
        drain.end() if ends else task.cancel()
        (raised,) = await asyncio.gather(task, return_exceptions=True)
        return raised, drain.serving

    raised, serving = run(cancelled)
    assert type(raised) is (ApiError if ends else asyncio.CancelledError)
    assert serving == 0


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

    assert max(run(lambda: read(5))) <= 5
