"""num_scheduler_steps with a model: whatever is asked for, in any pool, groups of passes return the same."""

from typing import Any

import pytest

from nanoinfer import RequestOutput, SamplingParams
from nanoinfer.model.loader import LoadedModel
from tests.helpers.drafts import STEM, WITH_TEXT, Asked, check_same, check_streams, serve, told
from tests.helpers.engines import assert_all_free
from tests.helpers.pressure import never_twice_in_a_row
from tests.helpers.tiny_llm import make_llm_model, tiny_llm, words

GROUPS = [2, 3, 8]
NO_REPEATS = {"logits_processors": (never_twice_in_a_row,), "logit_bias": {4: -100.0}}
GROUPED: Asked = [*WITH_TEXT, (STEM[:4], {"temperature": 0, **NO_REPEATS})]
POOLS: dict[str, dict[str, Any]] = {
    "roomy": {},
    "pages of 4": {"page_size": 4},
    "pages of 16": {"page_size": 16},
    "tight": {"max_total_tokens": 64, "schedule_conservativeness": 0.001},
    "tight, chunks": {"max_total_tokens": 64, "schedule_conservativeness": 0.001, "chunked_prefill_size": 6},
    "tight, pages and chunks": {
        "max_total_tokens": 60,
        "page_size": 4,
        "schedule_conservativeness": 0.001,
        "chunked_prefill_size": 8,
    },
    "no cache": {"disable_radix_cache": True, "max_total_tokens": 64, "schedule_conservativeness": 0.001},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return make_llm_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def alone(model: LoadedModel) -> list[RequestOutput]:
    """Each request by itself, in single passes, without a cache."""
    llm = tiny_llm(model, max_running_requests=3, disable_radix_cache=True)
    return [serve(llm, [asked])[0] for asked in GROUPED]


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("k", GROUPS)
def test_what_is_returned_is_the_same_in_groups_of_any_size(
    model: LoadedModel, alone: list[RequestOutput], k: int, pool: str
) -> None:
    llm = tiny_llm(model, max_running_requests=8, num_scheduler_steps=k, random_seed=0, **POOLS[pool])
    check_same(llm, serve(llm, GROUPED), alone)
    assert_all_free(llm.engine)
    assert {each[2] for each in told(alone)} == {"stop", "length"}
    if "tight" in pool:
        assert llm.engine.stats().retractions


@pytest.mark.parametrize("k", GROUPS)
def test_streams_come_in_groups_and_say_the_same(model: LoadedModel, k: int) -> None:
    asked = SamplingParams(max_new_tokens=12, seed=4, ignore_eos=True)
    prompt = words(STEM[:5])
    (wanted,) = tiny_llm(model).generate(prompt, asked)
    llm = tiny_llm(model, num_scheduler_steps=k)
    check_streams(llm, prompt, asked, wanted, {*range(1, 12, k), 12})  # the prompt's pass, then groups


def test_a_stream_that_is_left_in_the_middle_gives_all_slots_back(model: LoadedModel) -> None:
    llm = tiny_llm(model, num_scheduler_steps=8, page_size=4)
    for piece in llm.stream(words(STEM[:5]), SamplingParams(max_new_tokens=40, temperature=0, ignore_eos=True)):
        if len(piece.token_ids) > 1:
            break
    del piece
    llm.engine.check_integrity()
    assert_all_free(llm.engine)
