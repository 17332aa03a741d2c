"""What no page of a server may do, whichever test looks at it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from selenium.webdriver import Chrome


@pytest.fixture(autouse=True)
def _no_complaints(browser: "Chrome") -> Iterator[None]:
    """No script fails, and nothing that a page does is against its own policy."""
    yield
    told = [entry["message"] for entry in browser.get_log("browser") if entry["level"] != "INFO"]
    assert [message for message in told if "/live/" not in message and "/v1/" not in message] == []
