"""Tests with Ray, all of the soak: processes die, and clocks decide. Without Ray they are skipped, by name; what the
cluster does without Ray is tested elsewhere."""

from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip = pytest.mark.skip(reason="Ray is not installed: pip install -e '.[cluster]'")
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.soak)
            if find_spec("ray") is None:
                item.add_marker(skip)
