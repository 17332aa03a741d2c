"""Tests with Ray. Without it they are skipped, by name; tests of the cluster that need no Ray are elsewhere."""

from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if find_spec("ray") is not None:
        return
    skip = pytest.mark.skip(reason="Ray is not installed: pip install -e '.[cluster]'")
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(skip)
