"""What every test of the live page looks at in the end."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _no_complaints(browser: Any) -> Iterator[None]:
    """No script fails, and nothing that a page does is against its own policy."""
    yield
    told = [entry["message"] for entry in browser.get_log("browser") if entry["level"] != "INFO"]
    assert [message for message in told if "/live/" not in message and "/v1/" not in message] == []
