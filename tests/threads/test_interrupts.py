"""What is left when something raises in a step, a change or a call: at worst the engine resets, and serves on."""

import signal
import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from nanoinfer import LLM, RequestOutput, SamplingParams
from nanoinfer.engine.engine import Engine
from tests.helpers.async_engines import following, in_a_pass, llm_around, llm_behind_barrier
from tests.helpers.engines import assert_all_free, finish, greedy, make_engine, serve, step
from tests.helpers.interrupts import Interrupted, interrupted_at, raising
from tests.helpers.waiting import Worker, someone_waits, until


def once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, effect: Callable[[], Any]) -> None:
    """`owner.name` works as before, and the first time `effect` follows."""
    original, effects = getattr(owner, name), iter([effect])

    def patched(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        next(effects, lambda: None)()
        return result

    monkeypatch.setattr(owner, name, patched)


def fail(error: BaseException) -> Any:
    raise error


BOOKKEEPING: dict[str, Callable[[Engine], tuple[Any, str]]] = {
    "schedule": lambda engine: (engine.scheduler, "schedule"),
    "rows": lambda engine: (engine.model_runner.req_to_token_pool, "alloc"),
    "slots": lambda engine: (engine.model_runner.token_to_kv_pool, "alloc"),
    "process": lambda engine: (engine.scheduler, "process_batch_result"),
    "collect": lambda engine: (engine.open_requests, "collect"),
    "deliver": lambda engine: (engine.open_requests, "deliver_updates"),
    "tree": lambda engine: (engine.radix_cache, "insert"),
    "free": lambda engine: (engine.model_runner.token_to_kv_pool, "free"),
}


@pytest.mark.parametrize("error", [Interrupted("Ctrl-C"), LookupError("a bug")], ids=["Ctrl-C", "a bug"])
@pytest.mark.parametrize("where", BOOKKEEPING)
def test_an_engine_resets_when_its_bookkeeping_raises(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str, error: BaseException
) -> None:
    engine = make_engine(rows=3)
    going_on = engine.add_request([70, 71, 72], greedy(30))
    step(engine)
    ending, waiting = engine.add_request([5], greedy(1)), engine.add_request([50, 51], greedy(3))
    once(monkeypatch, *BOOKKEEPING[where](engine), lambda: fail(error))
    with pytest.raises(type(error)):
        engine.step()
    engine.check_integrity()
    stats = engine.stats()
    assert (stats.free_slots, stats.running, stats.waiting) == (stats.total_slots, 0, 0)
    assert stats.failed + stats.aborted + stats.finished == 3
    (said,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "resets" in said.getMessage()
    outputs = finish(engine)
    assert {outputs[rid].error for rid in (going_on, waiting)} == {error}
    if where != "deliver":  # then what had ended is lost with the step
        assert outputs[ending].error in (error, None)
    again = engine.add_request([70, 71, 72], greedy(3))
    assert finish(engine)[again].token_ids == [73, 74, 75]
    assert_all_free(engine)


def test_a_reset_that_is_cut_short_is_completed_by_whoever_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    rid = engine.add_request([5], greedy(3))
    once(monkeypatch, engine.scheduler, "process_batch_result", lambda: fail(LookupError("a bug")))
    once(monkeypatch, engine.cache, "clear", lambda: fail(Interrupted("Ctrl-C")))
    with pytest.raises(Interrupted):
        engine.step()
    outputs = finish(engine)
    assert isinstance(outputs[rid].error, LookupError)
    other = engine.add_request([50], greedy(2))
    assert finish(engine)[other].token_ids == [51, 52]
    assert_all_free(engine)


CHANGES: dict[str, tuple[str, Callable[[Engine, int], Any]]] = {
    "add_request": ("add", lambda engine, rid: engine.add_request([7], greedy(2))),
    "abort": ("end", lambda engine, rid: engine.abort(rid)),
    "abort_all": ("end", lambda engine, rid: engine.abort_all()),
    "shutdown": ("end", lambda engine, rid: engine.shutdown()),
    "pause": ("pause", lambda engine, rid: engine.pause(rid)),
}


@pytest.mark.parametrize("call", CHANGES)
def test_an_interrupt_in_a_change_between_steps_resets_too_and_no_output_is_lost(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    engine = make_engine()
    rid = engine.add_request([5], greedy(4))
    step(engine)
    name, change = CHANGES[call]
    once(monkeypatch, engine.scheduler, name, lambda: fail(Interrupted("Ctrl-C")))
    with pytest.raises(Interrupted):
        change(engine, rid)
    outputs = finish(engine)
    assert (outputs[rid].finish_reason, outputs[rid].token_ids) == ("abort", [6])
    assert engine.abort(rid) is None
    assert_all_free(engine)


# --- calls from inside a pass ------------------------------------------------------------------------------------

INSIDE: dict[str, Callable[[Engine, int], Any]] = {
    "step": lambda engine, rid: engine.step(),
    "add_request": lambda engine, rid: engine.add_request([80], greedy(2)),
    "pause": lambda engine, rid: engine.pause(rid),
    "abort": lambda engine, rid: engine.abort(rid),
    "abort_all": lambda engine, rid: engine.abort_all(),
    "flush_cache": lambda engine, rid: engine.flush_cache(),
    "shutdown": lambda engine, rid: engine.shutdown(),
}


@pytest.mark.parametrize("call", INSIDE)
def test_what_would_change_a_pass_is_refused_while_it_is_computed(call: str) -> None:
    engine = make_engine()
    refused = []

    def meddling(token_ids: Any, logits: Any) -> Any:
        with pytest.raises(RuntimeError):
            INSIDE[call](engine, 0)
        refused.append(call)
        return logits

    rid = engine.add_request([5], SamplingParams(max_new_tokens=3, temperature=0, logits_processors=[meddling]))
    other = engine.add_request([50], greedy(4))
    outputs = finish(engine)
    assert refused == [call] * 3
    assert (outputs[rid].token_ids, outputs[other].token_ids) == ([6, 7, 8], [51, 52, 53, 54])
    assert engine.stats().paused == 0
    assert_all_free(engine)


# --- signals: handlers run in the main thread, which only waits --------------------------------------------------


@pytest.fixture
def _alarm() -> Iterator[None]:
    """SIGALRM interrupts."""
    with raising(signal.SIGALRM):
        yield


def strike_main_thread() -> None:
    """SIGALRM, whose handler then runs in the main thread, even where that waits for a lock."""
    signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)  # type: ignore[arg-type]


@pytest.mark.usefixtures("_alarm")
@pytest.mark.parametrize("where", ["submit", "wait", "stream"])
def test_a_handler_that_raises_ends_the_main_threads_call_and_no_other(where: str) -> None:
    with llm_behind_barrier() as (llm, barrier):
        other = in_a_pass(llm, barrier, [5], greedy(30))

        def strike() -> None:
            until(lambda: someone_waits(llm.engine), "the main thread's call")
            if where != "submit":
                barrier.let_one_through()
                until(
                    lambda: barrier.arrivals == 2 and len(llm.engine.open_requests.groups) == 2,
                    "a pass with its request",
                )
            strike_main_thread()

        striker = Worker(strike)
        with pytest.raises(Interrupted):
            list(llm.stream([50], greedy(2))) if where == "stream" else llm.generate([50], greedy(2))
        striker.result()
        barrier.open()
        assert other.result()[0].token_ids == following(5, 30)
        assert (llm.engine.stats().aborted, llm.engine.stats().finished) == (1, 1)


def test_a_handler_may_call_while_its_thread_waits_for_its_own_call() -> None:
    with llm_behind_barrier() as (llm, barrier):
        answers = []

        def handler(*_: object) -> None:
            barrier.open()
            answers.append(llm.generate([70], greedy(2))[0].token_ids)

        def strike() -> None:
            until(lambda: barrier.arrivals, "a pass")
            strike_main_thread()

        before = signal.signal(signal.SIGALRM, handler)
        try:
            striker = Worker(strike)
            (output,) = llm.generate([5], greedy(3))
            striker.result()
        finally:
            signal.signal(signal.SIGALRM, before)
        assert (answers, output.token_ids) == ([[71, 72]], [6, 7, 8])


# --- at any moment: tokens are right, nothing is lost, nobody waits for ever -------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{}, {"host_cache_tokens": 64}, {"page_size": 4, "num_scheduler_steps": 3}, {"disable_radix_cache": True}],
)
def test_manual_steps_interrupted_at_any_moment_lose_nothing(options: dict[str, Any]) -> None:
    """In little room: with chunks, evictions and retractions."""
    for moment in count(1, 613):
        engine = make_engine(rows=3, slots=24, chunked_prefill_size=8, schedule_conservativeness=0.001, **options)
        rids, outputs = dict[int, int](), dict[int, RequestOutput]()
        with interrupted_at(moment) as where:
            for base in (5, 50, 5, 80):
                rids[engine.add_request(range(base, base + 10), greedy(8))] = base + 9  # type: ignore[arg-type]
            while engine.has_unfinished():
                outputs |= {output.request_id: output for output in engine.step()}
        engine.check_integrity()
        outputs |= finish(engine)
        for rid, output in outputs.items():
            assert output.token_ids == following(rids[rid], len(output.token_ids)), where
            if output.finished:  # else the interrupt took its last output
                assert len(output.token_ids) == 8 or isinstance(output.error, Interrupted), where
        assert where or all(outputs[rid].finished for rid in rids)
        assert [output.token_ids for output in serve(engine, [7], [70])] == [following(7, 4), following(70, 4)]
        assert_all_free(engine)
        if not where:
            return


CALLS: dict[str, Callable[[LLM], Any]] = {
    "generate": lambda llm: llm.generate([[5], [50], [80]], greedy(3), use_tqdm=False),
    "stream": lambda llm: list(llm.stream([5], greedy(3))),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("is_first", [True, False])
def test_calls_interrupted_at_any_moment_leave_the_engine_to_others(call: str, is_first: bool) -> None:
    """The first one of an LLM starts the engine's thread."""
    for moment in count(1, 5):
        llm = llm_around(make_engine())
        if not is_first:
            llm.generate([20], greedy(2))
        with interrupted_at(moment) as where:
            CALLS[call](llm)
        assert Worker(llm.generate, [30], greedy(3)).result()[0].token_ids == following(30, 3), where
        until(lambda llm=llm: not llm.engine.has_unfinished(), f"their end: {where}")
        assert_all_free(llm.engine)
        if not where:
            return
