"""What the tests of the notebooks share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from notebooks.course import checks
from tests.sample_series import save_checks


@pytest.fixture(scope="module")
def checks_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the checks of the made-up notebook 90, known to this process too."""
    folder = str(save_checks(tmp_path_factory.mktemp("checks")))
    checks.__path__.append(folder)
    yield Path(folder)
    checks.__path__.remove(folder)
