"""One browser for all tests of the live page."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from tests.helpers.chromium import chromium

    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture(autouse=True)
def _no_complaints(browser: Any) -> Iterator[None]:
    """No script fails, and nothing that a page does is against its own policy."""
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get_log("performance")
    yield
    told = [entry["message"] for entry in browser.get_log("browser") if entry["level"] != "INFO"]
    assert [message for message in told if "/live/" not in message and "/v1/" not in message] == []
