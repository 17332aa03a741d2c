"""One server around the bundled model for all tests that need no other one."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import openai
import pytest

from nanoinfer import LLM, SamplingParams
from tests.helpers.servers import Running, patient_app, running
from tests.helpers.waiting import HANG_S

if TYPE_CHECKING:
    from selenium.webdriver import Chrome


@pytest.fixture(autouse=True, scope="session")
def _long_timeouts() -> Iterator[None]:
    """What no setting says: a server lets nothing go, and says nothing, because a thread or a client is late. It comes
    before all servers, which look at it when they start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nanoinfer.server.run.SECONDS_FOR_LAST_ANSWERS", HANG_S)
        for module in ("nanoinfer.server.live.feed", "nanoinfer.server.block_events"):
            patch.setattr(f"{module}.SILENCE_SECONDS", HANG_S)
        yield


@pytest.fixture(scope="session")
def reference() -> LLM:
    """The same model, without a server: what its answers should be."""
    return LLM("story", max_total_tokens=4096)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    from nanoinfer.model.lora.manager import bundled_adapter

    root = tmp_path_factory.mktemp("adapters")
    for name in ("sea", "rhymes"):
        (root / name).symlink_to(bundled_adapter(name))  # links out of the root: refused
    llm = LLM("story", max_total_tokens=4096, max_queue=300, adapters={"sea": "sea"})
    with running(patient_app(llm, adapter_root=root)) as up:
        yield up


@pytest.fixture
def browser(browser: "Chrome") -> "Iterator[Chrome]":
    """A browser in which no script of the page fails, and nothing is against the page's own policy."""
    yield browser
    told = [entry["message"] for entry in browser.get_log("browser") if entry["level"] != "INFO"]
    assert [message for message in told if "/live/" not in message and "/v1/" not in message] == []


@pytest.fixture(scope="session")
def client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=HANG_S)


def greedy(max_new_tokens: int, **more: object) -> SamplingParams:
    return SamplingParams(max_new_tokens=max_new_tokens, temperature=0, **more)
