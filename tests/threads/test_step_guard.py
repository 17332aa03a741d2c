"""StepGuard: what a step promises when signals arrive, when exceptions come in pairs, and when they are no Exception."""

import _signal
import ctypes
import gc
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest

from nanoinfer import SamplingParams
from nanoinfer.engine.engine import Engine
from nanoinfer.threads import signals
from tests.helpers.engines import assert_all_free, finish, greedy, make_engine, model_of, step
from tests.helpers.interrupts import Interrupted, raising
from tests.helpers.own_names import module_with


@pytest.fixture(params=[signal.SIGINT, signal.SIGALRM, signal.SIGTERM, signal.SIGUSR1], ids=lambda number: number.name)
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


@pytest.mark.parametrize("error", [ValueError("a slot is missing"), Interrupted("a panic")])
def test_when_ending_a_failed_pass_fails_too_its_requests_end_at_the_start_of_the_next_step(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """They must not go on: the K/V of the pass may not be there, and their tokens would be wrong without an error."""
    engine = make_engine()
    failing, waiting = engine.add_request([5, 6], greedy(4)), engine.add_request([50], greedy(4))
    step(engine)
    model = model_of(engine)
    model.fail_at = model.passes + 1

    def second_failure(reqs: list[Any], *args: Any) -> None:
        if reqs:
            raise error

    with monkeypatch.context() as patch:
        patch.setattr(engine.scheduler, "end", second_failure)
        with pytest.raises(type(error), match=str(error)) as raised:
            engine.step()
    assert raised.value.__context__ is model.error
    late = engine.add_request([80], greedy(2))
    outputs = finish(engine)
    for rid in (failing, waiting):
        assert (outputs[rid].finish_reason, len(outputs[rid].token_ids)) == ("abort", 1)
        assert outputs[rid].error is model.error
    assert outputs[late].token_ids == [81, 82]
    assert engine.stats().failed == 2
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


def test_a_request_is_queued_only_if_its_caller_gets_the_id(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The signal comes as `submit` returns, when its variables are deleted: by C code, so that its handler has not run
    yet. From there to the caller's variable, there must be no place where Python would run it."""

    class Variable:
        pass

    raise_signal = ctypes.CDLL(None)["raise"]
    raise_signal.argtypes = [ctypes.c_int, ctypes.py_object]
    callback = partial(raise_signal, number)
    engine, refs = make_engine(), []
    returned: int | None = None
    submit = engine.submit

    def interrupted(group: Any) -> int:
        variable = Variable()
        refs.append(weakref.ref(variable, callback))
        return submit(group)

    monkeypatch.setattr(engine, "submit", interrupted)
    with pytest.raises(Interrupted):  # noqa: PT012 - it is raised by the last statement
        returned = engine.add_request([5], params=greedy(2))
        str(returned)
    assert list(engine.open_requests.groups) == [returned]


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


# --- the shield itself -------------------------------------------------------------------------------------------


def test_every_handler_is_back_when_one_raises_while_they_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    arrived = []

    def raises(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    before = {number: signal.getsignal(number) for number in (signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2)}
    handlers = {signal.SIGALRM: raises}
    handlers |= {number: lambda number, frame: arrived.append(number) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    try:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        once_more = iter([True])

        def restored(number: int, handler: Any) -> Any:
            result = _signal.signal(number, handler)
            if handler is raises and next(once_more, False):
                signal.raise_signal(number)  # as soon as its handler is back
            return result

        engine = make_engine()
        rid = engine.add_request([5], greedy(3))
        with monkeypatch.context() as patch:
            patch.setattr(signals, "_signal", module_with(_signal, signal=restored))
            with pytest.raises(Interrupted):
                engine.step()
        assert {number: signal.getsignal(number) for number in handlers} == handlers
        signal.raise_signal(signal.SIGUSR1)
        assert arrived == [signal.SIGUSR1]
        assert finish(engine)[rid].finished
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_handler_that_raises_as_it_is_let_in_leaves_no_shield_behind() -> None:
    """The exception's traceback keeps the context manager that was being entered; it ends when that is collected."""
    engine = make_engine()
    rid = engine.add_request([5], greedy(3))

    def entered(frame: FrameType, event: str, arg: Any) -> None:
        generator = getattr(frame.f_locals.get("self"), "gen", None)
        if event == "c_return" and arg is next and getattr(generator, "__name__", "") == "interruptible":
            sys.setprofile(None)
            signal.raise_signal(signal.SIGALRM)

    with raising(signal.SIGALRM):
        sys.setprofile(entered)
        try:
            with pytest.raises(Interrupted):
                engine.step()
        finally:
            sys.setprofile(None)
        assert finish(engine)[rid].finish_reason == "abort"
        assert_all_free(engine)
        del engine
        gc.collect()
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGALRM)


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
            with pytest.raises(RuntimeError, match="this engine is computing a pass"):
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
