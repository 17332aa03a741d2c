"""Requests that wait for K/V in files: others go on meanwhile, and nobody waits for a disk that has stalled."""

from typing import Any

import pytest

from nanoinfer import LLM, Engine, SamplingParams
from nanoinfer.model.loader import LoadedModel
from tests.helpers.engines import finish, step
from tests.helpers.fetches import Fetches
from tests.helpers.storeys import disk_of, storey_of
from tests.helpers.tiny_llm import tiny_llm
from tests.numerics.test_tiers import NOTHING, PARAMS, PROMPTS, Tokens, of_disk, served


def one_waits(engine: Engine) -> tuple[int, int]:
    """A request that is being computed, and one that waits for its prefix in files."""
    other = engine.add_request(PROMPTS[1], PARAMS)
    step(engine)
    waits = engine.add_request(PROMPTS[0], PARAMS)
    step(engine)
    return other, waits


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_a_request_waits_for_its_k_v_and_others_go_on(slow: tuple[LLM, Fetches], wanted: Tokens) -> None:
    llm, reads = slow
    engine = llm.engine
    waits, goes_on = (engine.add_request(prompt, PARAMS) for prompt in PROMPTS[:2])
    last: dict[int, Any] = {}
    while goes_on not in last or not last[goes_on].finished:
        last |= step(engine)
        assert engine.is_unfinished(waits)
        if engine.is_unfinished(goes_on):
            assert len(engine.scheduler.waiting) == 1
    assert (last[goes_on].token_ids, waits in last, len(reads.waiting)) == (wanted[1], False, 1)
    reads.run_all()
    last |= finish(engine)
    assert (last[waits].token_ids, last[waits].cached_tokens_by_tier) == (wanted[0], of_disk(32))


@pytest.mark.parametrize("others_run", [False, True])
def test_a_request_does_not_wait_for_a_disk_that_has_stalled(
    slow: tuple[LLM, Fetches], wanted: Tokens, others_run: bool
) -> None:
    llm, reads = slow
    engine, disk = llm.engine, disk_of(llm.engine)
    prompts = [1, 0] if others_run else [0]
    requests = [engine.add_request(PROMPTS[prompt], PARAMS) for prompt in prompts]
    step(engine)
    disk._reading_since = float("-inf")  # the reader has been at this block for ever
    last = finish(engine)
    assert [last[request].token_ids for request in requests] == [wanted[prompt] for prompt in prompts]
    assert ([future.cancelled() for future in reads.waiting], disk.fetching) == ([True], False)
    engine.flush_cache()
    assert served(llm, PROMPTS[:1]) == (wanted[:1], [NOTHING]), "nobody asks it again"
    disk._reading_since = None
    waits = engine.add_request([*PROMPTS[0][:40], 3], PARAMS)
    engine.flush_cache()
    step(engine)
    assert disk.fetching, "until it goes on"
    reads.run_all()
    assert finish(engine)[waits].cached_tokens_by_tier == of_disk(32)


def test_a_request_that_is_aborted_while_it_waits_leaves_nothing_behind(
    slow: tuple[LLM, Fetches], wanted: Tokens
) -> None:
    llm, reads = slow
    engine = llm.engine
    other, waits = one_waits(engine)
    engine.abort(waits)
    reads.run_all()
    assert finish(engine)[other].token_ids == wanted[1]
    assert served(llm, PROMPTS[2:]) == (wanted[2:], [NOTHING])
    assert not disk_of(llm.engine).fetching
    assert served(llm, PROMPTS[:1]) == (wanted[:1], [{**NOTHING, "host": 32}]), "what came all the same is used"


def test_a_step_ends_while_a_disk_has_stalled_so_that_others_get_their_turn(
    slow: tuple[LLM, Fetches], wanted: Tokens
) -> None:
    llm, reads = slow
    waits, other = (llm.engine.add_request(PROMPTS[0], PARAMS) for _ in range(2))
    assert step(llm.engine) == {}
    assert (llm.engine.is_unfinished(waits), disk_of(llm.engine).fetching) == (True, True)
    assert llm.engine.abort(waits) is not None
    reads.run_all()
    assert finish(llm.engine)[other].token_ids == wanted[0]


def test_k_v_on_its_way_takes_no_more_room_than_host_memory(slow: tuple[LLM, Fetches], model: LoadedModel) -> None:
    llm, reads = slow
    params = SamplingParams(n=8, max_new_tokens=12, seed=1, ignore_eos=True)
    (alone,) = tiny_llm(model, max_context_len=64, disable_radix_cache=True).generate(
        PROMPTS[:1], params, use_tqdm=False
    )
    request = llm.engine.add_request(PROMPTS[0], params)
    llm.engine.add_request(PROMPTS[1], PARAMS)
    step(llm.engine)
    assert len(reads.waiting) == storey_of(llm.engine).index.size // 32
    reads.run_all()
    last = finish(llm.engine)
    assert not reads.waiting, "all others find it in memory"
    assert [each.token_ids for each in last[request].outputs] == [each.token_ids for each in alone.outputs]


def test_what_has_come_when_nobody_is_considered_ends_the_step(slow: tuple[LLM, Fetches], wanted: Tokens) -> None:
    llm, reads = slow
    engine = llm.engine
    requests = [engine.add_request(prompt, PARAMS) for prompt in (PROMPTS[1], PROMPTS[0])]
    step(engine)
    for request in requests:
        engine.pause(request)
    reads.run_all()
    assert step(engine) == {}
    for request in requests:
        engine.resume(request)
    assert [finish(engine)[request].token_ids for request in requests[1:]] == wanted[:1]


def test_what_came_while_another_one_did_not_fit_is_admitted(slow: tuple[LLM, Fetches], wanted: Tokens) -> None:
    llm, reads = slow
    engine, is_ready = llm.engine, disk_of(llm.engine).is_ready
    runs = engine.add_request(PROMPTS[1], PARAMS)
    step(engine)
    waits = engine.add_request(PROMPTS[0], PARAMS)
    step(engine)
    large = engine.add_request([5] * 40, SamplingParams(max_new_tokens=24, temperature=0, ignore_eos=True))
    engine.cache.outstanding_size, size = (
        lambda req, ratio=1.0: 1000 if req.request_id == large else size(req, ratio),
        engine.cache.outstanding_size,
    )

    def ready(req: Any) -> bool:
        if req.request_id == large:
            reads.run_all()  # after it was the other one's turn
        return is_ready(req)

    disk_of(engine).is_ready = ready  # type: ignore[method-assign]
    step(engine)
    step(engine)
    assert [req.request_id for req in engine.scheduler.running] == [runs, waits]
    engine.abort(large)
    assert finish(engine)[waits].token_ids == wanted[0]


@pytest.mark.parametrize("has_come", [False, True])
def test_what_is_on_its_way_at_a_flush_does_not_arrive(slow: tuple[LLM, Fetches], has_come: bool) -> None:
    llm, reads = slow
    engine, storey = llm.engine, storey_of(llm.engine)
    waits, other = (engine.add_request(prompt, PARAMS) for prompt in PROMPTS[:2])
    step(engine)
    if has_come:
        reads.run_all()
    else:
        assert reads.waiting[0].set_running_or_notify_cancel(), "the disk is at it"
    engine.flush_cache()
    reads.run_all()
    last = step(engine)
    while not {waits, other} <= {i for i, output in last.items() if output.finished}:
        last |= step(engine)
        assert len(storey.index) == 0
    assert last[waits].cached_tokens_by_tier == NOTHING
    assert (disk_of(engine).fetching, disk_of(engine).fetched_tokens, reads.waiting) == (False, 0, [])
    engine.check_integrity()
    again = engine.add_request(PROMPTS[0], PARAMS)
    assert finish(engine)[again].token_ids == last[waits].token_ids
