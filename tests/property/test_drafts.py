"""Drafts of any length that go wrong anywhere, and how many of them a pass has, compared with trying every assignment."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoinfer import LLM, RequestOutput, SamplingParams
from nanoinfer.drafting.draft_lengths import LEAST_GAIN, DraftLengths, Prospect
from nanoinfer.drafting.measurements import MEMORY, Acceptance
from nanoinfer.model.captured_passes import coarse_size
from nanoinfer.model.loader import LoadedModel
from nanoinfer.registry import DRAFTERS
from nanoinfer.requests.req import Req
from tests.helpers.draft_lengths import Costs, Silent, make_lengths, measured
from tests.helpers.drafts import STEM, Asked, check_same, serve
from tests.helpers.engines import assert_all_free, step
from tests.helpers.foreknowing import Foreknowing
from tests.helpers.oracles import VOCAB
from tests.helpers.tiny_llm import make_llm_model, tiny_llm


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 64)), max_size=40))
def test_a_rate_is_a_probability(passes: list[tuple[int, int]]) -> None:
    acceptance = Acceptance()
    for drafted, accepted in passes:
        acceptance.add(drafted, min(drafted, accepted))
        assert 0 < acceptance.rate < 1
        assert acceptance.checked <= max(MEMORY, 64)


def prospects_of(rates: Sequence[float], limits: Sequence[int]) -> list[Prospect]:
    """Of a drafter that always has an idea."""
    return [Prospect(limit, 1.0, rate) for rate, limit in zip(rates, limits, strict=True)]


def speed(assignment: Sequence[int], rates: Sequence[float], costs: Costs, step_seconds: float) -> float:
    """Tokens per second of a pass with so many drafts for each request."""
    tokens = sum(1 + sum(rate**j for j in range(1, k + 1)) for rate, k in zip(rates, assignment, strict=True))
    batch, drafts = len(rates), sum(assignment)
    return tokens / (costs(coarse_size(batch + drafts) if drafts else batch) + max(assignment) * step_seconds)


@settings(max_examples=60)
@given(
    rates=st.lists(st.sampled_from([0.05, 0.3, 0.5, 0.6, 0.75, 0.9, 0.97]), min_size=1, max_size=3),
    limits=st.lists(st.integers(0, 3), min_size=3, max_size=3),
    increments=st.lists(st.floats(0, 0.6), min_size=12, max_size=12),
)
def test_no_other_assignment_makes_a_pass_faster(
    rates: list[float], limits: list[int], increments: list[float]
) -> None:
    """A drafter whose time does not count. Each draft brings less than the one before, so none is taken out of turn."""
    table = np.cumsum([0.0, 1.0, *increments])

    def costs(rows: int) -> float:
        return float(table[rows])

    lengths = DraftLengths([Silent()], 3, True)
    measured(lengths, costs, range(1, 13))
    limits = limits[: len(rates)]
    batch = len(rates)
    found = lengths._turn(0, prospects_of(rates, limits), lengths._costs[True]).most
    assert all(0 <= count <= limit for count, limit in zip(found, limits, strict=True))
    best = max(speed(assignment, rates, costs, 0.0) for assignment in product(*(range(limit + 1) for limit in limits)))
    without = speed([0] * batch, rates, costs, 0.0)
    if any(found):
        assert speed(found, rates, costs, 0.0) == pytest.approx(best, rel=0.01), "older costs are hoped to be lower"
        assert best > LEAST_GAIN * without * 0.99
    else:
        assert best <= LEAST_GAIN * without * 1.01


@settings(max_examples=60)
@given(
    rate=st.sampled_from([0.3, 0.6, 0.8, 0.95]),
    slope=st.floats(0, 0.3),
    step_seconds=st.floats(0, 0.4),
)
def test_the_length_for_one_request_is_the_best_with_the_drafters_time(
    rate: float, slope: float, step_seconds: float
) -> None:
    def costs(rows: int) -> float:
        return 1 + slope * rows

    lengths = make_lengths(costs, step_seconds=step_seconds)
    (found,) = lengths._turn(0, prospects_of([rate], [7]), lengths._costs[True]).most
    without, best = (
        speed([0], [rate], costs, step_seconds),
        max(speed([k], [rate], costs, step_seconds) for k in range(8)),
    )
    if found:
        assert speed([found], [rate], costs, step_seconds) == pytest.approx(best, rel=0.01)
        assert best >= LEAST_GAIN * without * 0.99
    else:
        assert best <= LEAST_GAIN * without * 1.01


ROLLBACK: Asked = [
    (STEM[:5], {"temperature": 0, "logprobs": 1}),
    (STEM[:9], {"seed": 1, "n": 2, "logprobs": 0, "max_new_tokens": 12}),
    ([*STEM[:5], 1], {"temperature": 0, "stop": ["w3 w", "w20"], "min_new_tokens": 3}),
    ([8, 8], {"seed": 2, "stop_token_ids": list(range(0, VOCAB, 4)), "presence_penalty": 0.5}),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return make_llm_model(tmp_path_factory.mktemp("tiny"))


def leaves(llm: LLM) -> set[tuple[int, ...]]:
    """The token sequences in the tree, from the root to each leaf."""
    paths = {llm.engine.radix_cache.root: ()}
    found = set()
    for _, node in llm.engine.radix_cache.nodes():
        paths[node] = (*paths[node.parent], *node.key.tolist())
        if not node.children:
            found.add(paths[node])
    return found


@pytest.fixture(scope="module")
def kept(model: LoadedModel) -> dict[int, tuple[list[RequestOutput], set[tuple[int, ...]]]]:
    """Without drafts, by page size: what is returned, and what is in the tree afterwards."""
    found = {}
    for page_size in (1, 4):
        llm = tiny_llm(model, max_running_requests=8, max_total_tokens=256, page_size=page_size)
        found[page_size] = serve(llm, ROLLBACK), leaves(llm)
    return found


@pytest.fixture(scope="module")
def knowing(model: LoadedModel) -> Foreknowing:
    drafter, llm = Foreknowing(VOCAB), tiny_llm(model, max_running_requests=8)
    reqs: list[Req] = []
    for prompt, fields in ROLLBACK:
        request_id = llm.engine.add_request(prompt, SamplingParams(**{"max_new_tokens": 16, **fields}))
        reqs += llm.engine.open_requests.groups[request_id].reqs
    while llm.engine.has_unfinished():
        step(llm.engine)
    drafter.remember(reqs)
    return drafter


@settings(max_examples=40)
@given(
    plans=st.lists(st.tuples(st.integers(0, 64), st.integers(0, 16)), min_size=1, max_size=40),
    num_draft_tokens=st.sampled_from([1, 2, 5, 16, 64]),
    page_size=st.sampled_from([1, 4]),
    slots=st.sampled_from([48, 256]),
    chunked_prefill_size=st.sampled_from([None, 4]),
    adaptive_drafts=st.booleans(),
)
def test_drafts_of_any_length_that_go_wrong_anywhere_leave_nothing_behind(
    model: LoadedModel,
    kept: dict[int, tuple[list[RequestOutput], set[tuple[int, ...]]]],
    knowing: Foreknowing,
    plans: list[tuple[int, int]],
    num_draft_tokens: int,
    page_size: int,
    slots: int,
    chunked_prefill_size: int | None,
    adaptive_drafts: bool,
) -> None:
    """Plan i of the drafter: how many drafts, and how many of them are right. Slots are checked after each step."""
    asked = 0

    def plan(req: Req, most: int) -> tuple[int, int]:
        nonlocal asked
        asked += 1
        count, right = plans[asked % len(plans)]
        return min(count, most), right

    knowing.plan = plan
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DRAFTERS, "foreknowing", lambda _: knowing)
        llm = tiny_llm(
            model,
            drafter="foreknowing",
            num_draft_tokens=num_draft_tokens,
            adaptive_drafts=adaptive_drafts,
            page_size=page_size,
            max_running_requests=8,
            max_total_tokens=slots,
            chunked_prefill_size=chunked_prefill_size,
            schedule_conservativeness=0.001,
        )
    outputs = serve(llm, ROLLBACK)
    plain, in_tree = kept[page_size]
    check_same(llm, outputs, plain)
    if slots == 256:  # with fewer, some of it was evicted
        assert leaves(llm) == in_tree
    assert_all_free(llm.engine)
