"""Requests that wait for K/V in files: others go on meanwhile, and nobody waits for a disk that has stalled."""

from typing import Any

from nanoinfer import LLM, Engine, SamplingParams
from nanoinfer.model.loader import LoadedModel
from tests.helpers.engines import finish, step
from tests.helpers.storeys import SlowStore, storey_of
from tests.helpers.tiny_llm import tiny_llm
from tests.numerics.test_disk_storey import NOTHING, PARAMS, PROMPTS, Tokens, of_disk, served


def one_waits(engine: Engine) -> tuple[int, int]:
    """A request that is being computed, and one that waits for its prefix in files."""
    other = engine.add_request(PROMPTS[1], PARAMS)
    step(engine)
    waits = engine.add_request(PROMPTS[0], PARAMS)
    step(engine)
    return other, waits


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_a_request_waits_for_its_k_v_and_others_go_on(slow: tuple[LLM, SlowStore], wanted: Tokens) -> None:
    llm, store = slow
    engine = llm.engine
    waits, goes_on = (engine.add_request(prompt, PARAMS) for prompt in PROMPTS[:2])
    last: dict[int, Any] = {}
    while goes_on not in last or not last[goes_on].finished:
        last |= step(engine)
        assert engine.is_unfinished(waits)
        if engine.is_unfinished(goes_on):
            assert len(engine.scheduler.waiting) == 1
    assert (last[goes_on].token_ids, waits in last, len(store.on_its_way)) == (wanted[1], False, 1)
    store.read_all()
    last |= finish(engine)
    assert (last[waits].token_ids, last[waits].cached_tokens_by_tier) == (wanted[0], of_disk(32))


def test_a_request_does_not_wait_for_a_disk_that_has_stalled(slow: tuple[LLM, SlowStore], wanted: Tokens) -> None:
    llm, store = slow
    store.disk.least_patience_s = 0.0
    assert served(llm, PROMPTS[:1]) == (wanted[:1], [NOTHING])
    ((future, _),) = store.on_its_way
    assert future.cancelled()
    assert not store.disk.fetching


def test_it_does_not_wait_for_it_either_while_others_run(slow: tuple[LLM, SlowStore], wanted: Tokens) -> None:
    llm, store = slow
    store.disk.least_patience_s = 0.0
    engine = llm.engine
    runs, waits = (engine.add_request(prompt, PARAMS) for prompt in (PROMPTS[1], PROMPTS[0]))
    last: dict[int, Any] = {}
    while engine.scheduler.waiting:
        last |= step(engine)
        assert engine.is_unfinished(runs)
    last |= finish(engine)
    assert [last[request_id].token_ids for request_id in (runs, waits)] == [wanted[1], wanted[0]]
    assert len(store.on_its_way) == 1


def test_a_request_that_is_aborted_while_it_waits_leaves_nothing_behind(
    slow: tuple[LLM, SlowStore], wanted: Tokens
) -> None:
    llm, store = slow
    engine = llm.engine
    other, waits = one_waits(engine)
    engine.abort(waits)
    store.read_all()
    assert finish(engine)[other].token_ids == wanted[1]
    assert served(llm, PROMPTS[2:]) == (wanted[2:], [NOTHING])
    assert not store.disk.fetching
    assert served(llm, PROMPTS[:1]) == (wanted[:1], [{**NOTHING, "host": 32}]), "what came all the same is used"


def test_a_step_ends_while_a_disk_has_stalled_so_that_others_get_their_turn(
    slow: tuple[LLM, SlowStore], wanted: Tokens
) -> None:
    llm, store = slow
    waits, other = (llm.engine.add_request(PROMPTS[0], PARAMS) for _ in range(2))
    assert step(llm.engine) == {}
    assert (llm.engine.is_unfinished(waits), store.disk.fetching) == (True, True)
    assert llm.engine.abort(waits) is not None
    store.read_all()
    assert finish(llm.engine)[other].token_ids == wanted[0]


def test_k_v_on_its_way_takes_no_more_room_than_host_memory(slow: tuple[LLM, SlowStore], model: LoadedModel) -> None:
    llm, store = slow
    params = SamplingParams(n=8, max_new_tokens=12, seed=1, ignore_eos=True)
    (alone,) = tiny_llm(model, max_context_len=64, disable_radix_cache=True).generate(
        PROMPTS[:1], params, use_tqdm=False
    )
    request = llm.engine.add_request(PROMPTS[0], params)
    llm.engine.add_request(PROMPTS[1], PARAMS)
    step(llm.engine)
    assert len(store.on_its_way) == storey_of(llm.engine).index.size // 32
    store.read_all()
    last = finish(llm.engine)
    assert not store.on_its_way, "all others find it in memory"
    assert [each.token_ids for each in last[request].outputs] == [each.token_ids for each in alone.outputs]


def test_a_request_that_was_put_off_does_not_wait_for_a_disk_that_has_stalled(
    slow: tuple[LLM, SlowStore], wanted: Tokens
) -> None:
    llm, store = slow
    engine, times = llm.engine, [0.0]
    store.disk._clock, store.disk.least_patience_s = lambda: times[0], 1.0
    runs = engine.add_request(PROMPTS[1], PARAMS)
    step(engine)
    others = [engine.add_request(PROMPTS[0], PARAMS) for _ in range(storey_of(engine).index.size // 32)]
    put_off = engine.add_request(PROMPTS[0], PARAMS)
    step(engine)
    times[0] = 0.9
    others += [engine.add_request([9] * 44, PARAMS)]
    step(engine)
    assert len(store.on_its_way) == len(others) - 1
    assert put_off in [req.request_id for req in engine.scheduler.waiting]
    times[0] = 1.1
    last = finish(engine)
    assert len(store.on_its_way) == len(others) - 1, "it is not read for whoever has waited so long"
    assert [last[each].token_ids for each in (runs, put_off)] == [wanted[1], wanted[0]]


def test_a_request_that_was_put_off_is_read_for_when_there_is_room(slow: tuple[LLM, SlowStore], wanted: Tokens) -> None:
    llm, store = slow
    engine, times = llm.engine, [0.0]
    store.disk._clock, store.disk.least_patience_s = lambda: times[0], 1.0
    others = [engine.add_request(PROMPTS[0], PARAMS) for _ in range(storey_of(engine).index.size // 32)]
    put_off = engine.add_request(PROMPTS[0], PARAMS)
    step(engine)
    for each in others:
        engine.abort(each)
    times[0] = 5.0
    step(engine)
    assert len(store.on_its_way) == len(others) + 1
    store.read_all()
    assert finish(engine)[put_off].token_ids == wanted[0]


def test_nobody_waits_for_the_k_v_of_a_request_that_has_ended(slow: tuple[LLM, SlowStore]) -> None:
    llm, store = slow
    engine = llm.engine
    other = engine.add_request(PROMPTS[1], PARAMS)
    waits = engine.add_request(PROMPTS[0], PARAMS)
    step(engine)
    ((future, _),) = store.on_its_way
    engine.abort(waits)
    engine.abort(other)
    step(engine)
    assert future.cancelled()
    assert not store.disk.fetching


def test_what_has_come_when_nobody_is_considered_ends_the_step(slow: tuple[LLM, SlowStore], wanted: Tokens) -> None:
    llm, store = slow
    engine = llm.engine
    requests = [engine.add_request(prompt, PARAMS) for prompt in (PROMPTS[1], PROMPTS[0])]
    step(engine)
    for request in requests:
        engine.pause(request)
    store.read_all()
    assert step(engine) == {}
    for request in requests:
        engine.resume(request)
    assert [finish(engine)[request].token_ids for request in requests[1:]] == wanted[:1]


def test_what_came_while_another_one_did_not_fit_is_admitted(slow: tuple[LLM, SlowStore], wanted: Tokens) -> None:
    llm, store = slow
    engine, is_ready = llm.engine, store.disk.is_ready
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
            store.read_all()  # after it was the other one's turn
        return is_ready(req)

    store.disk.is_ready = ready  # type: ignore[method-assign]
    step(engine)
    step(engine)
    assert [req.request_id for req in engine.scheduler.running] == [runs, waits]
    engine.abort(large)
    assert finish(engine)[waits].token_ids == wanted[0]
