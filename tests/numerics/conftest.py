"""What more than one file here needs."""

from pathlib import Path

import pytest

from nanoinfer import LLM
from nanoinfer.model.loader import LoadedModel
from tests.helpers.fetches import Fetches
from tests.helpers.oracles import make_model
from tests.helpers.tiers import disk_of
from tests.helpers.tiny_llm import tiny_llm


@pytest.fixture(autouse=True, scope="module")
def _files_are_patient(patient_files: None) -> None:
    """Here all engines with files are."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """The tiny model; some files have another one."""
    return make_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def wanted(model: LoadedModel) -> list[list[int]]:
    """The tokens of test_tiers's prompts, each alone and without a cache."""
    from tests.numerics.test_tiers import PARAMS, PROMPTS

    llm = tiny_llm(model, max_context_len=64, disable_radix_cache=True, max_running_requests=1)
    return [output.token_ids for output in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]


@pytest.fixture
def slow(tmp_path: Path, model: LoadedModel) -> tuple[LLM, Fetches]:
    """An engine with two rows and K/V of the first prompt in files, which are read when the test says so."""
    from tests.numerics.test_tiers import PROMPTS, llm_in, served

    first = llm_in(tmp_path, model)
    served(first, PROMPTS[:1])
    first.shutdown()
    llm = llm_in(tmp_path, model, max_running_requests=2, max_total_tokens=160)
    reads = Fetches()
    disk_of(llm.engine)._reader = reads  # type: ignore[assignment]
    return llm, reads
