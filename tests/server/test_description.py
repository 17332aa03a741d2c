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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Its model is called what is made up most often."""
    llm = LLM("story", max_total_tokens=2048, max_context_len=128)
    root = tmp_path_factory.mktemp("adapters")
    with running(patient_app(llm, served_model_name="0", adapter_root=root)) as up:
        yield up


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", GenerationMode)
def test_nothing_that_is_made_up_is_a_500(server: Running, mode: GenerationMode) -> None:
    description = server.app.openapi()
    described = schemathesis.openapi.from_dict(description)
    routes = [
        (path, method.upper(), each) for path, its in description["paths"].items() for method, each in its.items()
    ]
    assert len(routes) > 15
    for path, method, each in routes:
        if mode is GenerationMode.POSITIVE or "requestBody" in each:  # any text may be a model's name
            check_route(server, described[path][method], mode)


def check_route(server: Running, operation: Any, mode: GenerationMode) -> None:
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


def test_the_description_has_no_status_that_is_never_sent(server: Running) -> None:
    assert "422" not in server.get("/openapi.json").text
