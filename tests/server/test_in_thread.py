"""A server in a thread of its own: it is up when `start` returns, and its end loses nothing."""

import asyncio
import re
from typing import Any

import httpx
import pytest

from nanoinfer import LLM
from nanoinfer.server import ServerThread
from nanoinfer.server.settings import SECONDS
from tests.helpers.servers import patient_app
from tests.helpers.waiting import HANG_S, Worker
from tests.server.conftest import greedy

PATIENCE = dict.fromkeys(SECONDS, HANG_S)


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


# --- llm.serve ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("story", max_total_tokens=1024)


def test_a_model_serves_itself_while_its_own_methods_are_used(llm: LLM) -> None:
    body = {"model": "story", "prompt": "Once upon", "max_tokens": 8, "temperature": 0}
    serving = llm.serve(**PATIENCE)
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
    with llm.serve(**PATIENCE) as first:
        with pytest.raises(RuntimeError, match=str(first.port)):
            llm.serve(first.port)
        settings = {"host": "127.0.0.2", "api_keys": ["fox"], "served_model_name": "tales", **PATIENCE}
        second = llm.serve(first.port, **settings)
    with second:
        assert second.url == f"http://127.0.0.2:{first.port}"
        assert httpx.get(f"{second.url}/v1/models", timeout=HANG_S).status_code == 401
        models = httpx.get(f"{second.url}/v1/models", headers={"authorization": "Bearer fox"}, timeout=HANG_S)
        assert models.json()["data"][0]["id"] == "tales"


def test_in_a_notebook_it_is_its_page_in_a_frame(llm: LLM) -> None:
    with llm.serve(**PATIENCE) as serving:
        shown = serving._repr_html_()  # type: ignore[attr-defined]
        assert f'<iframe src="{serving.url}/"' in shown
        policy = httpx.get(f"{serving.url}/", timeout=HANG_S).headers["content-security-policy"]
        assert policy.endswith("frame-ancestors http://localhost:* http://127.0.0.1:* vscode-webview:")
    assert "iframe" not in serving._repr_html_()  # type: ignore[attr-defined]
    with llm.serve(framed_by=(), **PATIENCE) as alone:
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
