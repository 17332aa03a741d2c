"""One server around the bundled model for all tests that need no other one."""

from collections.abc import Iterator

import openai
import pytest

from nanoinfer import LLM, SamplingParams
from tests.helpers.servers import Running, patient_app, running
from tests.helpers.waiting import HANG_S


@pytest.fixture(autouse=True)
def _patient_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a server does by the clock, it does not do because the machine is busy."""
    for name in ("run.SECONDS_FOR_LAST_ANSWERS", "live.event_stream.SILENCE_SECONDS", "block_routes.SILENCE_SECONDS"):
        monkeypatch.setattr(f"nanoinfer.server.{name}", HANG_S)


@pytest.fixture(scope="session")
def reference() -> LLM:
    """The same model, without a server: what its answers should be."""
    return LLM("story", max_total_tokens=4096)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    from nanoinfer.adapters.manager import bundled_adapter

    root = tmp_path_factory.mktemp("adapters")
    for name in ("sea", "rhymes"):
        (root / name).symlink_to(bundled_adapter(name))  # links out of the root: refused
    llm = LLM("story", max_total_tokens=4096, max_queue=300, adapters={"sea": "sea"})
    with running(patient_app(llm, adapter_root=root)) as up:
        yield up


@pytest.fixture(scope="session")
def client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=HANG_S)


def greedy(max_new_tokens: int, **more: object) -> SamplingParams:
    return SamplingParams(max_new_tokens=max_new_tokens, temperature=0, **more)
