"""Drafts of any length that go wrong anywhere, and how many of them are worth their price, compared with trying all."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoinfer import LLM, RequestOutput, SamplingParams
from nanoinfer.model.loader import LoadedModel
from nanoinfer.registry import DRAFTERS
from nanoinfer.requests.req import Req
from nanoinfer.speculative.length_controller import MEMORY, Acceptance, worthwhile
from tests.helpers.drafts import STEM, Asked, OracleDrafter, check_same, serve
from tests.helpers.engines import assert_all_free, step
from tests.helpers.oracles import VOCAB
from tests.helpers.tiny_llm import make_llm_model, tiny_llm


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 64)), max_size=40), st.floats(0.01, 0.99))
def test_a_rate_is_a_probability(passes: list[tuple[int, int]], expected: float) -> None:
    acceptance = Acceptance(memory=MEMORY)
    for drafted, accepted in passes:
        acceptance.add(drafted, min(drafted, accepted))
        assert 0 < acceptance.rate(expected) < 1
        assert acceptance.checked <= max(MEMORY, 64)


@given(rate=st.floats(0.01, 0.99), price=st.floats(-0.5, 1.5), limit=st.integers(0, 12))
def test_no_other_number_of_drafts_is_worth_more(rate: float, price: float, limit: int) -> None:
    def worth(drafts: int) -> float:
        return sum(rate**j - price for j in range(1, drafts + 1))

    found = worthwhile(rate, price, limit)
    assert 0 <= found <= limit
    assert worth(found) == pytest.approx(max(map(worth, range(limit + 1))), abs=1e-9)


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
def oracle_drafter(model: LoadedModel) -> OracleDrafter:
    drafter, llm = OracleDrafter(VOCAB), tiny_llm(model, max_running_requests=8)
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
    oracle_drafter: OracleDrafter,
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

    oracle_drafter.plan = plan
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DRAFTERS, "oracle", lambda _: oracle_drafter)
        llm = tiny_llm(
            model,
            drafter="oracle",
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
