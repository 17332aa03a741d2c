"""A server is up when it has started. At its end, what it accepted is served or told so, and newcomers are refused."""

import asyncio
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from nanoinfer import LLM
from nanoinfer.server import ServerThread
from nanoinfer.server.generation import Generation
from nanoinfer.server.metrics import Metrics
from nanoinfer.server.settings import SECONDS
from tests.helpers.servers import (
    BODY,
    BreakingTokenizer,
    let_in,
    patient_app,
    read_all,
    request_bytes,
    server_behind_barrier,
)
from tests.helpers.waiting import HANG_S, Worker, run, until
from tests.server.conftest import greedy


def test_a_server_that_ends_serves_what_it_accepted_and_refuses_newcomers() -> None:
    with server_behind_barrier() as (server, barrier, engine), ThreadPoolExecutor(3) as threads:
        bodies = [{**BODY, "max_tokens": 60, "stream": stream} for stream in (True, False)]
        answers = [threads.submit(server.post, "/v1/completions", body) for body in bodies]
        let_in(server, barrier, engine, 2)
        server.end()
        until(lambda: server.service.drain.is_draining)
        refused = server.post("/v1/completions", BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert refused.headers["retry-after"] == "1"
        assert server.get("/health").status_code == 503
        barrier.open()
        stream, whole = (answer.result() for answer in answers)
        assert whole.json()["usage"]["completion_tokens"] == 60
        assert stream.text.endswith("data: [DONE]\n\n")
        assert server.wait(HANG_S)
        engine.check_integrity()
        stats = engine.stats()  # an engine that the server has not loaded keeps its tree
        assert stats.free_slots + stats.evictable_slots == stats.total_slots


def test_told_to_end_once_more_it_waits_no_longer() -> None:
    with server_behind_barrier() as (server, barrier, engine), ThreadPoolExecutor(2) as threads:
        answers = [threads.submit(server.post, "/v1/completions", {**BODY, "max_tokens": 60}) for _ in range(2)]
        let_in(server, barrier, engine, 2)
        server.end()
        until(lambda: server.service.drain.is_draining)
        server.end()
        until(lambda: server.closed_by() == ["shutdown"] * 2)
        barrier.open()
        for answer in answers:
            assert (answer.result().status_code, answer.result().json()["error"]["code"]) == (503, "shutting_down")
        assert server.wait(HANG_S)


def test_after_the_drain_timeout_a_request_whose_body_is_still_coming_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with server_behind_barrier(settings={"drain_timeout_s": 0.05}) as (server, _, _):
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

    with (
        server_behind_barrier(settings={"drain_timeout_s": 0.05}) as (server, _, engine),
        ThreadPoolExecutor(1) as threads,
    ):
        engine.builder.tokenizer = BreakingTokenizer(engine.builder.tokenizer, hang)  # type: ignore[assignment]
        answer = threads.submit(server.post, "/v1/completions", {**BODY, "prompt": "break"})
        until(has_begun.is_set)
        server.end()
        assert (answer.result().status_code, answer.result().json()["error"]["code"]) == (503, "shutting_down")
        free.set()
        assert server.wait(HANG_S)
        engine.check_integrity()


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


# --- a server in a thread of its own -----------------------------------------------------------------------------------

TIMEOUTS = dict.fromkeys(SECONDS, HANG_S)


def test_it_serves_while_the_block_runs_and_calls_run_in_its_event_loop() -> None:
    with ServerThread(patient_app(LLM("story", max_total_tokens=256))) as server:
        assert httpx.get(f"{server.url}/health", timeout=HANG_S).json() == {"status": "ok"}
        assert server.url.endswith(f":{server.port}")
        assert server.call(server.service.engine.stats()).running == 0

        async def fail() -> None:
            await asyncio.sleep(0)
            raise KeyError("here")

        with pytest.raises(KeyError, match="here"):
            server.call(fail())
    assert server.wait(0)
    assert server.service.engine.is_closed
    server.end()  # nothing is left to end
    with pytest.raises(RuntimeError):
        server.call(server.service.engine.stats())


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("story", max_total_tokens=1024)


def test_a_model_serves_itself_while_its_own_methods_are_used(llm: LLM) -> None:
    body = {"model": "story", "prompt": "Once upon", "max_tokens": 8, "temperature": 0}
    serving = llm.serve(**TIMEOUTS)
    try:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", serving.url)
        ours = Worker(lambda: [llm.generate("Once upon", greedy(8))[0].text for _ in range(5)])
        theirs = [httpx.post(f"{serving.url}/v1/completions", json=body, timeout=HANG_S).json() for _ in range(5)]
        (wanted,) = set(ours.result())
        assert {answer["choices"][0]["text"] for answer in theirs} == {wanted}
        assert theirs[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0, "they share one tree"
    finally:
        serving.stop()
    serving.stop()  # nothing is left to stop
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{serving.url}/health", timeout=HANG_S)
    assert llm.generate("Once upon", greedy(8))[0].text == wanted, "the model is left as it was"


def test_the_port_and_the_settings_of_llm_serve(llm: LLM) -> None:
    with llm.serve(**TIMEOUTS) as first:
        with pytest.raises(RuntimeError, match=str(first.port)):
            llm.serve(first.port)
        settings = {"host": "127.0.0.2", "api_keys": ["fox"], "served_model_name": "tales", **TIMEOUTS}
        second = llm.serve(first.port, **settings)
    with second:
        assert second.url == f"http://127.0.0.2:{first.port}"
        assert httpx.get(f"{second.url}/v1/models", timeout=HANG_S).status_code == 401
        models = httpx.get(f"{second.url}/v1/models", headers={"authorization": "Bearer fox"}, timeout=HANG_S)
        assert models.json()["data"][0]["id"] == "tales"


def test_in_a_notebook_it_is_its_page_in_a_frame(llm: LLM) -> None:
    with llm.serve(**TIMEOUTS) as serving:
        shown = serving._repr_html_()  # type: ignore[attr-defined]
        assert f'<iframe src="{serving.url}/"' in shown
        policy = httpx.get(f"{serving.url}/", timeout=HANG_S).headers["content-security-policy"]
        assert policy.endswith("frame-ancestors http://localhost:* http://127.0.0.1:* vscode-webview:")
    assert serving._repr_html_() is None  # type: ignore[attr-defined]
    with llm.serve(framed_by=(), **TIMEOUTS) as alone:
        assert httpx.get(f"{alone.url}/", timeout=HANG_S).headers["content-security-policy"].endswith("'none'")


@pytest.mark.parametrize("port", [-1, 65536, "8000"])
def test_a_port_that_is_none_is_told(llm: LLM, port: Any) -> None:
    with pytest.raises(ValueError, match="port"):
        llm.serve(port)


def test_an_address_of_another_machine_is_told_and_a_name_that_it_listens_at_may_be_asked_for(llm: LLM) -> None:
    with pytest.raises(RuntimeError, match=r"192\.0\.2\.1"):
        llm.serve(host="192.0.2.1")
    with llm.serve(host="localhost") as serving:
        assert "localhost" in serving.service.settings.allowed_hosts
