"""Requests that schemathesis makes up from the OpenAPI description, right and wrong ones: none is answered with a 500."""

from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis import GenerationMode

from nanoinfer import LLM
from tests.helpers.servers import Running, patient_app, running
from tests.helpers.waiting import HANG_S

WITH_INPUT = (
    *("POST /v1/completions", "POST /v1/chat/completions", "POST /generate", "POST /tokenize", "POST /detokenize"),
    *("POST /v1/load_lora_adapter", "POST /v1/unload_lora_adapter"),
)
WITHOUT_INPUT = (
    *("GET /v1/models", "GET /health", "GET /version", "GET /metrics", "POST /flush_cache", "POST /reset_prefix_cache"),
    *("GET /get_model_info", "GET /model_info", "GET /tokenizer_info"),
    "GET /v1/models/{model}",  # any text may be a model's name
)
CASES = [(route, mode) for mode in GenerationMode for route in WITH_INPUT]
CASES += [(route, GenerationMode.POSITIVE) for route in WITHOUT_INPUT]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Its model is called what is made up most often."""
    llm = LLM("story", max_total_tokens=2048, max_context_len=128)
    root = tmp_path_factory.mktemp("adapters")
    with running(patient_app(llm, served_model_name="0", adapter_root=root)) as up:
        yield up


@pytest.fixture(scope="module")
def described(server: Running) -> Any:
    return schemathesis.openapi.from_dict(server.app.openapi())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("route", "mode"), CASES)
def test_nothing_that_is_made_up_is_a_500(server: Running, described: Any, route: str, mode: GenerationMode) -> None:
    operation = described[route.split(" ")[1]][route.split(" ")[0]]
    found: set[int] = set()

    @hypothesis.settings(max_examples=10)
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        answer = case.call(base_url=server.url, timeout=HANG_S)
        found.add(answer.status_code)
        assert answer.status_code < 500, answer.text
        if answer.status_code >= 400:
            error = answer.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert error["message"]

    ask()
    assert found
    server.check_idle()


def test_every_route_is_tried(server: Running) -> None:
    description = server.get("/openapi.json")
    assert "422" not in description.text, "a status that is never sent"
    described = description.json()["paths"]
    routes = {f"{method.upper()} {path}" for path, operations in described.items() for method in operations}
    assert routes == {*WITH_INPUT, *WITHOUT_INPUT}
