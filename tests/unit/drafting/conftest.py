"""What tests of drafting share."""

import pytest

from nanoinfer.registry import DRAFTERS
from tests.helpers.foreseeing import Foreseeing


@pytest.fixture
def drafter(monkeypatch: pytest.MonkeyPatch) -> Foreseeing:
    """The drafter that `engine_of` asks."""
    one = Foreseeing()
    monkeypatch.setitem(DRAFTERS, "foreseeing", lambda _: one)
    return one
