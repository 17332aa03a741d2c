"""What is left when a handler of a signal raises in a step or in a call, in one thread and while several use an engine."""

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nanoinfer import SamplingParams
from nanoinfer.engine.engine import Engine
from tests.helpers.async_engines import following, gated, in_a_pass, llm_around
from tests.helpers.engines import assert_all_free, finish, greedy, make_engine, step
from tests.helpers.interrupts import Interrupted, raising
from tests.helpers.waiting import Worker, until


@pytest.fixture(params=[signal.SIGINT, signal.SIGALRM], ids=lambda number: number.name)
def number(request: pytest.FixtureRequest) -> Iterator[int]:
    """A signal whose Python handler raises Interrupted."""
    with raising(request.param):
        yield request.param


def once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, effect: Callable[[], Any]) -> None:
    """`owner.name` works as before, and the first time `effect` follows."""
    original, effects = getattr(owner, name), iter([effect])

    def patched(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        next(effects, lambda: None)()
        return result

    monkeypatch.setattr(owner, name, patched)


BOOKKEEPING: dict[str, Callable[[Engine], tuple[Any, str]]] = {
    "schedule": lambda engine: (engine.scheduler, "schedule"),
    "rows": lambda engine: (engine.model_runner.req_to_token_pool, "alloc"),
    "slots": lambda engine: (engine.model_runner.token_to_kv_pool, "alloc"),
    "process": lambda engine: (engine.scheduler, "process_batch_result"),
    "collect": lambda engine: (engine.open_requests, "collect"),
    "deliver": lambda engine: (engine.open_requests, "deliver_updates"),
}


@pytest.mark.parametrize("where", BOOKKEEPING)
def test_a_handler_that_raises_waits_for_the_bookkeeping_and_costs_no_request_and_no_output(
    monkeypatch: pytest.MonkeyPatch, where: str, number: int
) -> None:
    engine = make_engine()
    first, second = engine.add_request([5], greedy(1)), engine.add_request([50, 51], greedy(3))
    once(monkeypatch, *BOOKKEEPING[where](engine), lambda: signal.raise_signal(number))
    with pytest.raises(Interrupted):
        engine.step()
    engine.check_integrity()
    outputs = finish(engine)
    if where in ("schedule", "rows", "slots"):  # the handler gets in before the forward pass, which it so interrupts
        assert {outputs[rid].finish_reason for rid in (first, second)} == {"abort"}
        assert all(isinstance(outputs[rid].error, Interrupted) for rid in (first, second))
    else:  # it gets in when all has been done
        assert (outputs[first].token_ids, outputs[first].finish_reason) == ([6], "length")
        assert (outputs[second].token_ids, outputs[second].finish_reason) == ([52, 53, 54], "length")
    assert_all_free(engine)


@pytest.mark.parametrize("owner", ["model_runner", "sampler"])
def test_a_handler_that_raises_gets_in_at_once_in_forward_and_sample(
    monkeypatch: pytest.MonkeyPatch, owner: str, number: int
) -> None:
    engine = make_engine()
    rid = engine.add_request([5], greedy(3))
    went_on = []

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        signal.raise_signal(number)
        went_on.append(True)

    with monkeypatch.context() as patch:
        patch.setattr(
            getattr(engine, owner), {"model_runner": "forward_batch", "sampler": "sample"}[owner], interrupted
        )
        with pytest.raises(Interrupted):
            engine.step()
    assert not went_on
    output = finish(engine)[rid]
    assert (output.finish_reason, output.token_ids) == ("abort", [])
    assert isinstance(output.error, Interrupted)
    assert_all_free(engine)


def test_what_is_no_exception_from_the_tokenizer_ends_its_requests_and_the_engine_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a panic of a tokenizer written in Rust: it may come again while the requests of the pass are ended."""
    engine = make_engine()
    assert engine.builder.tokenizer is not None
    rid = engine.add_request([65, 66], greedy(3))
    waiting = engine.add_request([70], greedy(3), timeout_s=1000.0)
    step(engine)

    def panic(*args: Any, **kwargs: Any) -> str:
        raise Interrupted("panicked at 'index out of bounds'")

    with monkeypatch.context() as patch:
        patch.setattr(engine.builder.tokenizer, "decode", panic)
        outputs = step(engine)
    assert {outputs[i].finish_reason for i in (rid, waiting)} == {"abort"}
    assert all(isinstance(outputs[i].error, Interrupted) for i in (rid, waiting))
    healthy = engine.add_request([65], greedy(2))
    assert finish(engine)[healthy].finish_reason == "length"
    assert_all_free(engine)


# --- calls beside the step ---------------------------------------------------------------------------------------


def test_nothing_is_queued_when_a_handler_raises_in_add_request(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    engine = make_engine()
    other = engine.add_request([80], greedy(2))
    before = engine.stats()
    once(monkeypatch, engine.scheduler, "add", lambda: signal.raise_signal(number))
    with pytest.raises(Interrupted):
        engine.add_request([5, 6], greedy(3, n=1), timeout_s=60.0)
    assert engine.stats() == before
    last = engine.add_request([90], greedy(2))
    assert {rid: output.token_ids for rid, output in finish(engine).items()} == {other: [81, 82], last: [91, 92]}
    assert_all_free(engine)


@pytest.mark.parametrize("call", ["abort", "abort_all", "shutdown"])
def test_the_outputs_of_requests_that_end_are_kept_when_a_handler_raises(
    monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    engine = make_engine()
    rid = engine.add_request([5], greedy(4))
    step(engine)
    once(monkeypatch, engine.scheduler, "end", lambda: signal.raise_signal(number))
    with pytest.raises(Interrupted):
        engine.abort(rid) if call == "abort" else getattr(engine, call)()
    outputs = finish(engine)
    assert (outputs[rid].finish_reason, outputs[rid].token_ids) == ("abort", [6])
    assert engine.abort(rid) is None
    assert_all_free(engine)


# --- calls from inside a pass ------------------------------------------------------------------------------------

INSIDE: dict[str, Callable[[Engine, int], Any]] = {
    "step": lambda engine, rid: engine.step(),
    "pause": lambda engine, rid: engine.pause(rid),
    "abort": lambda engine, rid: engine.abort(rid),
    "abort_all": lambda engine, rid: engine.abort_all(),
    "shutdown": lambda engine, rid: engine.shutdown(),
}


@pytest.mark.parametrize("call", INSIDE)
@pytest.mark.parametrize("at", [1, 2], ids=["in an EXTEND", "in a DECODE"])
def test_what_would_change_a_pass_is_refused_while_it_is_computed(call: str, at: int) -> None:
    engine = make_engine()
    refused = []

    def meddling(token_ids: Any, logits: Any) -> Any:
        if len(token_ids) == at:
            with pytest.raises(RuntimeError):
                INSIDE[call](engine, 0)
            refused.append(call)
        return logits

    rid = engine.add_request([5], SamplingParams(max_new_tokens=3, temperature=0, logits_processors=[meddling]))
    other = engine.add_request([50], greedy(4))
    outputs = finish(engine)
    assert refused == [call]
    assert (outputs[rid].token_ids, outputs[other].token_ids) == ([6, 7, 8], [51, 52, 53, 54])
    assert engine.stats().paused == 0
    assert_all_free(engine)


def test_a_request_may_arrive_while_a_pass_is_computed() -> None:
    engine = make_engine()
    late = []

    def adding(token_ids: Any, logits: Any) -> Any:
        late.append(engine.add_request([80], greedy(2)))
        return logits

    rid = engine.add_request([5], SamplingParams(max_new_tokens=1, temperature=0, logits_processors=[adding]))
    outputs = finish(engine)
    assert (outputs[rid].token_ids, outputs[late[0]].token_ids) == ([6], [81, 82])
    assert_all_free(engine)


@pytest.fixture
def _alarm() -> Iterator[None]:
    """SIGALRM interrupts."""
    with raising(signal.SIGALRM):
        yield


def strike_main_thread() -> None:
    """SIGALRM, whose handler then runs in the main thread, even where that waits for a lock."""
    signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)  # type: ignore[arg-type]


@pytest.mark.usefixtures("_alarm")
@pytest.mark.parametrize("where", ["submit", "wait"])
def test_a_handler_that_raises_ends_the_main_threads_call_and_no_other(where: str) -> None:
    engine, gate = gated(open_at_once=False)
    llm = llm_around(engine)
    other = in_a_pass(llm, gate, [5], greedy(30))

    def strike() -> None:
        until(lambda: engine.turns.waiting, "the main thread's call")
        if where == "wait":
            gate.let_one_through()
            until(lambda: gate.arrivals == 2 and len(engine.open_requests.groups) == 2, "a pass with its request")
        strike_main_thread()

    striker = Worker(strike)
    with pytest.raises(Interrupted):
        llm.generate([50], greedy(2))
    striker.result()
    gate.open()
    assert other.result()[0].token_ids == following(5, 30)
    assert (engine.stats().aborted, engine.stats().finished) == (int(where == "wait"), 1)
    assert_all_free(engine)


def test_a_handler_may_call_while_its_thread_waits_for_the_pass_of_another() -> None:
    engine, gate = gated(open_at_once=False)
    llm = llm_around(engine)
    call = in_a_pass(llm, gate, [5], greedy(3))
    answers = []

    def handler(*_: object) -> None:
        gate.open()
        answers.append(llm.generate([70], greedy(2))[0].token_ids)

    def strike() -> None:
        until(lambda: engine.turns.waiting, "the main thread's visit")
        signal.raise_signal(signal.SIGALRM)  # its handler runs in the main thread

    before = signal.signal(signal.SIGALRM, handler)
    try:
        striker = Worker(strike)
        engine.stats()  # waits for the pass, which waits for the handler
        striker.result()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert answers == [[71, 72]]
    assert call.result()[0].token_ids == [6, 7, 8]
    assert_all_free(engine)


@pytest.mark.usefixtures("_alarm")
def test_a_stream_whose_opening_is_interrupted_leaves_nothing_queued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine()
    llm, add = llm_around(engine), engine.scheduler.add

    def interrupted(req: Any) -> None:
        signal.raise_signal(signal.SIGALRM)
        add(req)

    monkeypatch.setattr(engine.scheduler, "add", interrupted)
    with pytest.raises(Interrupted) as caught:
        next(llm.stream([5], greedy(2)))
    assert caught.tb is not None  # and with it all frames: nothing is left to garbage collection
    assert (len(engine.scheduler.waiting), llm._calls._calls, engine.loop.request_ids()) == (0, {}, set())
    assert_all_free(engine)
