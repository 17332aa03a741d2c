"""Tests that need Ray. They never run unasked, since starting Ray takes longer than a thousand quick tests; then they are
skipped, by name. `.ci/cluster` runs those whose outcome is certain (`-m ray`), the soak all of them (`--kinds ray`)."""

from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NOT_INSTALLED = "Ray is not installed: pip install -e '.[cluster]'"
NOT_ASKED_FOR = "needs Ray: run by .ci/cluster, or by -m ray where Ray is installed"


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = config.option.markexpr  # what -m says
    is_asked_for = not chosen or chosen in ("ray", "soak")
    for item in items:
        if item.path.is_relative_to(HERE):
            if item.get_closest_marker("soak") is None:
                item.add_marker(pytest.mark.ray)
            if not is_asked_for:
                item.add_marker(pytest.mark.skip(reason=NOT_ASKED_FOR))
            elif find_spec("ray") is None:
                item.add_marker(pytest.mark.skip(reason=NOT_INSTALLED))
