"""num_scheduler_steps with a model: whatever is asked for, in any pool, groups of passes return the same."""

from itertools import accumulate
from typing import Any

import numpy as np
import pytest

from nanoinfer import LLM, AsyncEngine, RequestOutput, SamplingParams
from nanoinfer.model.loader import LoadedModel
from tests.helpers.engines import assert_all_free, step
from tests.helpers.oracles import VOCAB
from tests.helpers.pressure import never_twice_in_a_row
from tests.helpers.tiny_llm import make_llm_model, tiny_llm, words
from tests.helpers.waiting import run

GROUPS = [2, 3, 8]
STEM = np.random.default_rng(1).integers(0, VOCAB, 30).tolist()
# Prompts that share beginnings, and for each what is asked for.
ASKED: list[tuple[list[int], dict[str, Any]]] = [
    (STEM[:12], {"temperature": 0}),
    ([*STEM[:12], 3], {"temperature": 0, "logprobs": 2, "prompt_logprobs": True}),
    (STEM[:20], {"seed": 1, "n": 3, "logprobs": 0}),
    (STEM[3:9], {"seed": 2, "top_k": 5, "top_p": 0.9, "repetition_penalty": 1.3}),
    (STEM[:16], {"seed": 3, "frequency_penalty": 0.5, "presence_penalty": 0.3, "min_p": 0.01, "logprobs": 3}),
    ([7], {"temperature": 0, "stop_token_ids": list(range(0, VOCAB, 3)), "min_new_tokens": 4}),
    (STEM[5:25], {"seed": 4, "stop": ["w1", "w2 w", "w9"]}),
    (STEM[:30], {"seed": 5, "stop": ["w30"], "include_stop_str_in_output": True, "min_new_tokens": 2}),
    (STEM[:4], {"temperature": 0, "logits_processors": (never_twice_in_a_row,), "logit_bias": {4: -100.0}}),
    ([9, 9], {"seed": 6, "temperature": 3.0, "max_new_tokens": 1}),
]
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


def params(i: int) -> SamplingParams:
    return SamplingParams(**{"max_new_tokens": 6 + 2 * i, **ASKED[i][1]})


def served(llm: LLM) -> list[RequestOutput]:
    """The requests, which arrive one after another while others run; slots are checked after every step."""
    engine = llm.engine
    last: dict[int, RequestOutput] = {}
    for i, (prompt, _) in enumerate(ASKED):
        engine.add_request(prompt, params(i))
        last |= step(engine)
    while engine.has_unfinished():
        last |= step(engine)
    assert_all_free(engine)
    return [last[rid] for rid in sorted(last)]


def told(outputs: list[RequestOutput]) -> list[Any]:
    """Everything about them that does not depend on when they were computed, but for the log-probabilities' values."""
    return [
        (each.token_ids, each.text, each.finish_reason, each.stop_reason, [*map(list, each.logprobs or [])])
        for output in outputs
        for each in output.outputs
    ]


def values(outputs: list[RequestOutput]) -> list[float]:
    entries = [entry for output in outputs for each in output.outputs for entry in each.logprobs or []]
    of_prompts = [value for output in outputs for value in output.prompt_logprobs or [] if value is not None]
    return [value for entry in entries for value in entry.values()] + of_prompts


@pytest.fixture(scope="module")
def alone(model: LoadedModel) -> list[RequestOutput]:
    """Each request by itself, in single passes, without a cache."""
    llm = tiny_llm(model, max_running_requests=3, disable_radix_cache=True)
    return [llm.generate(prompt, params(i))[0] for i, (prompt, _) in enumerate(ASKED)]


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("k", GROUPS)
def test_what_is_returned_is_the_same_in_groups_of_any_size(
    model: LoadedModel, alone: list[RequestOutput], k: int, pool: str
) -> None:
    llm = tiny_llm(model, max_running_requests=8, num_scheduler_steps=k, random_seed=0, **POOLS[pool])
    outputs = served(llm)
    assert told(outputs) == told(alone)
    if llm.engine.stats().kernels == "cpp":  # whose sums do not depend on the batch
        assert values(outputs) == values(alone)
    else:
        assert values(outputs) == pytest.approx(values(alone), abs=1e-4)
    assert {each[2] for each in told(alone)} == {"stop", "length"}
    if "tight" in pool:
        assert llm.engine.stats().retractions


@pytest.mark.parametrize("k", GROUPS)
def test_streams_come_in_groups_and_say_the_same(model: LoadedModel, k: int) -> None:
    asked = SamplingParams(max_new_tokens=12, seed=4, ignore_eos=True)
    prompt = words(STEM[:5])
    (wanted,) = tiny_llm(model).generate(prompt, asked)
    llm = tiny_llm(model, num_scheduler_steps=k)
    pieces = list(llm.stream(prompt, asked))
    received = set(accumulate(len(piece.token_ids) for piece in pieces))
    assert received <= {*range(1, 12, k), 12}  # the prompt's pass, then groups; several where the reader is behind
    assert "".join(piece.text for piece in pieces) == wanted.text
    assert [token for piece in pieces for token in piece.token_ids] == wanted.token_ids

    async def streamed() -> list[list[int]]:
        async with AsyncEngine(llm) as engine:
            return [piece.token_ids async for piece in engine.stream(prompt, asked)]

    groups = run(streamed)
    assert [token for group in groups for token in group] == wanted.token_ids
    assert set(accumulate(map(len, groups))) <= {*range(1, 12, k), 12}


def test_a_stream_that_is_left_in_the_middle_gives_all_slots_back(model: LoadedModel) -> None:
    llm = tiny_llm(model, num_scheduler_steps=8, page_size=4)
    for piece in llm.stream(words(STEM[:5]), SamplingParams(max_new_tokens=40, temperature=0, ignore_eos=True)):
        if len(piece.token_ids) > 1:
            break
    del piece
    llm.engine.check_integrity()
    assert_all_free(llm.engine)
