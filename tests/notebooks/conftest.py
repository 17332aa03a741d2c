"""What the tests of the notebooks share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from notebooks.course import checks
from tests.sample_series import CHECKS


@pytest.fixture(scope="module")
def checks_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the checks of the made-up notebook 90, known to this process too."""
    folder = tmp_path_factory.mktemp("checks")
    (folder / "nb90.py").write_text(CHECKS)
    checks.__path__.append(str(folder))
    yield folder
    checks.__path__.remove(str(folder))
