"""What more than one file here needs."""

from pathlib import Path

import pytest

from nanoinfer import LLM
from nanoinfer.model.loader import LoadedModel
from tests.helpers.storeys import SlowStore


@pytest.fixture(autouse=True, scope="module")
def _files_are_patient(patient_files: None) -> None:
    """Here all engines with files are."""


@pytest.fixture
def slow(tmp_path: Path, model: LoadedModel) -> tuple[LLM, SlowStore]:
    """An engine with two rows and K/V of the first prompt in files that are slow; `model` is that of the test's file."""
    from tests.numerics.test_disk_storey import PROMPTS, llm_in, served

    first = llm_in(tmp_path, model)
    served(first, PROMPTS[:1])
    first.shutdown()
    llm = llm_in(tmp_path, model, max_running_requests=2, max_total_tokens=160)
    return llm, SlowStore(llm.engine)
