"""Several threads and one engine: what is refused, what waits, and that calls of an LLM are served together."""

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import torch

from nanoinfer import LLM, Engine, SamplingParams, StepFailedError
from nanoinfer.calls import Calls
from nanoinfer.exit_gate import ExitGate
from tests.helpers.async_engines import Gate, following, gated
from tests.helpers.engines import assert_all_free, finish, greedy, make_engine, step

SECONDS = 20  # a thread that takes so long hangs


class Thread(threading.Thread):
    """Calls a function; `result()` returns what it returned, or raises what it raised."""

    def __init__(self, function: Callable[..., Any], *args: Any):
        super().__init__(daemon=True)
        self._function, self._args = function, args
        self.start()

    def run(self) -> None:
        self._result, self._error = None, None
        try:
            self._result = self._function(*self._args)
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        self.join(SECONDS)
        assert not self.is_alive(), "a thread hangs"
        if self._error is not None:
            raise self._error
        return self._result


def llm_around(engine: Engine) -> LLM:
    llm = LLM.__new__(LLM)
    llm.engine, llm.config, llm._calls = engine, engine.config, Calls(engine)
    return llm


def until(condition: Callable[[], bool]) -> None:
    """Wait for other threads to come so far."""
    for _ in range(SECONDS * 1000):
        if condition():
            return
        threading.Event().wait(0.001)
    raise AssertionError("other threads do not come so far")


def in_a_pass(llm: LLM, gate: Gate, prompt: list[int], params: SamplingParams) -> Thread:
    """A thread that calls `generate`, once it waits at the gate in its first pass."""
    thread = Thread(llm.generate, prompt, params)
    until(lambda: llm.engine.turns.is_computing)
    return thread


# --- by hand ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["step", "add_request"])
def test_a_second_thread_that_drives_an_engine_by_hand_is_told_what_to_use(call: str) -> None:
    engine = make_engine()
    rid = engine.add_request([5], greedy(2))
    with pytest.raises(RuntimeError, match=r"drives this engine by hand.*LLM\.generate, chat or stream.*AsyncEngine"):
        Thread(engine.step if call == "step" else lambda: engine.add_request([7], greedy(2))).result()
    assert finish(engine)[rid].token_ids == [6, 7]
    if call == "add_request":
        other = Thread(engine.add_request, [7], greedy(2)).result()  # now it may
        assert Thread(finish, engine).result()[other].token_ids == [8, 9]
    assert_all_free(engine)


def test_a_step_by_hand_is_refused_while_another_thread_waits_for_a_call() -> None:
    engine, gate = gated(open_at_once=False)
    llm = llm_around(engine)
    call = in_a_pass(llm, gate, [5], greedy(3))
    with pytest.raises(RuntimeError, match=r"other threads are waiting for an LLM's calls.*LLM\.generate"):
        engine.step()
    gate.open()
    assert call.result()[0].token_ids == [6, 7, 8]
    assert step(engine) == {}
    assert_all_free(engine)


def test_requests_added_by_hand_are_served_with_calls_of_other_threads_and_their_outputs_are_kept() -> None:
    engine, gate = gated(open_at_once=False)
    llm = llm_around(engine)
    by_hand = engine.add_request([50], greedy(2))
    call = in_a_pass(llm, gate, [5], greedy(3))
    gate.open()
    assert call.result()[0].token_ids == [6, 7, 8]
    assert finish(engine)[by_hand].token_ids == [51, 52]
    assert_all_free(engine)


LOOKS: dict[str, Callable[[Engine, int], Any]] = {
    "stats": lambda engine, rid: engine.stats().running,
    "check_integrity": lambda engine, rid: engine.check_integrity(),
    "abort": lambda engine, rid: engine.abort(rid),
    "flush_cache": lambda engine, rid: engine.flush_cache(),
}


@pytest.mark.parametrize("call", LOOKS)
def test_what_other_threads_call_waits_for_the_pass_to_end(call: str) -> None:
    engine, gate = gated(open_at_once=False)
    llm = llm_around(engine)
    caller = in_a_pass(llm, gate, [5], greedy(3))
    (rid,) = engine.turns.callers
    looker = Thread(LOOKS[call], engine, rid)
    looker.join(0.05)
    assert looker.is_alive()
    gate.let_one_through()  # steps wait for the looker, who waits for this pass
    result = looker.result()
    gate.open()
    (output,) = caller.result()
    if call == "abort":
        assert (output.finish_reason, output.token_ids) == ("abort", [6])
        assert result.token_ids == [6]
    else:
        assert output.token_ids == [6, 7, 8]
    if call == "stats":
        assert result == 1
    assert_all_free(engine)


# --- calls of an LLM -------------------------------------------------------------------------------------------------


def test_calls_of_two_threads_are_in_one_pass() -> None:
    engine, gate = gated(open_at_once=False)
    llm = llm_around(engine)
    first = in_a_pass(llm, gate, [5], greedy(4))
    second = Thread(llm.generate, [[50], [70]], greedy(3))
    until(lambda: engine.turns._visitors == 1)  # it comes in before the next pass
    gate.let_one_through()
    until(lambda: len(engine.turns.callers) == 3)
    gate.open()
    assert first.result()[0].token_ids == following(5, 4)
    assert [output.token_ids for output in second.result()] == [following(50, 3), following(70, 3)]
    assert gate.passes <= 6  # 1 + 1 to extend the second thread's, and the rest together; apart it would be 7
    assert not engine.turns.callers
    assert_all_free(engine)


def failing(token_ids: Any, logits: torch.Tensor) -> torch.Tensor:
    raise LookupError("a bad processor")


def test_a_failing_logits_processor_of_one_thread_does_not_fail_the_call_of_another() -> None:
    engine, gate = gated(open_at_once=False)
    llm = llm_around(engine)
    good = in_a_pass(llm, gate, [5], greedy(6))
    bad = Thread(llm.generate, [50], greedy(6, logits_processors=[failing]))
    until(lambda: engine.turns._visitors == 1)  # its prompt is the next pass, of which the good one is no part
    gate.open()
    with pytest.raises((LookupError, StepFailedError)) as raised:
        bad.result()
    assert isinstance(raised.value, LookupError) or isinstance(raised.value.__cause__, LookupError)
    assert good.result()[0].token_ids == following(5, 6)
    assert not engine.turns.callers
    assert_all_free(engine)


def test_the_other_requests_of_a_failing_pass_get_a_step_failed_error_with_the_cause() -> None:
    engine, gate = gated(open_at_once=False)
    llm = llm_around(engine)
    first = in_a_pass(llm, gate, [5], greedy(8))
    second = Thread(llm.generate, [50], greedy(8))
    until(lambda: engine.turns._visitors == 1)
    gate.error, gate.error_at = LookupError("a broken model"), 3  # both decode in it
    gate.open()
    errors: list[BaseException] = []
    for thread in (first, second):
        with pytest.raises((StepFailedError, LookupError)) as raised:
            thread.result()
        errors.append(raised.value)
    causes = [error.__cause__ if isinstance(error, StepFailedError) else error for error in errors]
    assert causes == [gate.error, gate.error]
    assert any(isinstance(error, StepFailedError) for error in errors)
    assert llm.generate([5], greedy(2))[0].token_ids == [6, 7]
    assert_all_free(engine)


# --- streams that are dropped ----------------------------------------------------------------------------------------


@pytest.fixture
def _no_collections() -> Iterator[None]:
    """Garbage is collected when a test says so."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def half_read(llm: LLM, prompt: list[int]) -> Any:
    """A stream with one piece read."""
    stream = llm.stream(prompt, greedy(20))
    next(stream)
    return stream


def in_a_cycle(thing: Any) -> None:
    """Leave it to the garbage collector."""
    cycle = [thing]
    cycle.append(cycle)


def test_a_stream_dropped_in_another_thread_frees_its_slots() -> None:
    engine = make_engine()
    llm = llm_around(engine)
    Thread(lambda: half_read(llm, [5]).close()).result()
    Thread(lambda: half_read(llm, [50]) and None).result()
    assert not engine.turns.callers
    assert engine.stats().aborted == 2
    assert_all_free(engine)


@pytest.mark.usefixtures("_no_collections")
def test_closing_a_stream_does_not_wait_for_the_pass_of_another_thread() -> None:
    engine, gate = gated()
    llm = llm_around(engine)
    stream = half_read(llm, [5])
    gate._is_open = False
    call = in_a_pass(llm, gate, [50], greedy(2))
    Thread(stream.close).result()  # garbage collection could do this with locks held that the pass needs
    gate.open()
    assert call.result()[0].token_ids == [51, 52]
    assert engine.stats().aborted == 1
    assert not engine.turns.callers
    assert_all_free(engine)


@pytest.mark.parametrize("where", ["pass", "abort", "submit"])
@pytest.mark.usefixtures("_no_collections")
def test_streams_that_are_collected_in_the_middle_of_a_turn_are_closed_after_it(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """One has tokens to come, and one has ended without that its reader has seen it."""
    engine = make_engine()
    llm = llm_around(engine)
    ended, going_on = llm.stream([30], greedy(2)), half_read(llm, [5])
    next(ended)
    rid = engine.add_request([50], greedy(3))
    step(engine)  # the last token of the one
    in_a_cycle(ended)
    in_a_cycle(going_on)
    del ended, going_on
    owner, name = {
        "pass": (engine.model_runner, "forward"),
        "abort": (engine.open_requests, "remove"),
        "submit": (engine.scheduler, "add"),
    }[where]
    original = getattr(owner, name)

    def collecting(*args: Any) -> Any:
        monkeypatch.undo()
        before = len(engine.open_requests.groups)
        gc.collect()
        assert len(engine.open_requests.groups) == before, "a request was taken away in the middle of bookkeeping"
        return original(*args)

    monkeypatch.setattr(owner, name, collecting)
    {"pass": engine.step, "abort": engine.abort_all, "submit": lambda: engine.add_request([70], greedy(1))}[where]()
    assert not engine.turns.callers
    assert not llm._calls._calls
    outputs = finish(engine)
    assert where == "abort" or outputs[rid].token_ids == [51, 52, 53]
    assert_all_free(engine)


def test_pieces_are_read_without_a_lock_that_a_step_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage collection may close another stream while pieces are being read: nothing may wait for that."""
    engine = make_engine()
    llm = llm_around(engine)
    first, second = half_read(llm, [5]), half_read(llm, [50])
    assert not [name for name, value in vars(first.gi_frame.f_locals["call"]).items() if hasattr(value, "acquire")]
    assert [piece.token_ids for piece in second] == [[52], *([token] for token in following(52, 18))]
    first.close()
    assert_all_free(engine)


# --- signals and threads ---------------------------------------------------------------------------------------------


class Interrupted(Exception):
    """What a handler raises."""


@pytest.fixture
def _alarm() -> Iterator[None]:
    def handler(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handler)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("_alarm")
def test_a_request_that_another_threads_pass_has_begun_is_ended_when_add_request_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The handler raises when the turn has been given back, and another thread may be quicker than what takes it back."""
    engine = make_engine()
    llm = llm_around(engine)
    give_back = engine.turns._give_back

    def given_back() -> None:
        give_back()
        if engine.scheduler.waiting and threading.current_thread() is threading.main_thread():
            monkeypatch.undo()
            Thread(llm.generate, [80], greedy(2)).result()
            signal.raise_signal(signal.SIGALRM)

    monkeypatch.setattr(engine.turns, "_give_back", given_back)
    with pytest.raises(Interrupted):
        engine.add_request([5], greedy(10))
    assert not engine.open_requests.ids()
    assert step(engine) == {}
    assert_all_free(engine)


@pytest.mark.usefixtures("_alarm")
@pytest.mark.parametrize("method", ["__enter__", "__exit__"])
def test_a_handler_that_raises_at_the_exit_gate_leaves_its_lock_free(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The main thread passes it to tokenize; a lock that is left taken would stop every other thread for ever."""
    gate = ExitGate()
    original = getattr(threading.Condition, method)

    def strike(condition: threading.Condition, *args: Any) -> Any:
        if method == "__exit__":
            signal.raise_signal(signal.SIGALRM)
        result = original(condition, *args)
        if method == "__enter__":
            signal.raise_signal(signal.SIGALRM)
        return result

    def pass_through() -> None:
        with gate:
            pass

    with monkeypatch.context() as patch:
        patch.setattr(threading.Condition, method, strike)
        with pytest.raises(Interrupted):
            pass_through()
    Thread(pass_through).result()


@pytest.mark.usefixtures("_alarm")
def test_a_handler_that_raises_in_a_pass_of_other_threads_requests_ends_the_main_threads_call() -> None:
    """Its own request waits; the exception is for the main thread all the same."""
    engine, gate = gated(rows=1)
    llm = llm_around(engine)
    other = llm.stream([5], greedy(30))
    Thread(next, other).result()

    def alarm(*args: Any) -> Any:
        gate.model = model
        signal.raise_signal(signal.SIGALRM)

    model, gate.model = gate.model, alarm
    with pytest.raises(Interrupted):
        llm.generate([50], greedy(2))
    with pytest.raises(StepFailedError) as raised:
        list(other)
    assert isinstance(raised.value.__cause__, Interrupted)
    assert llm.generate([5], greedy(2))[0].token_ids == [6, 7]
    assert_all_free(engine)


# --- pauses, handlers, forks -----------------------------------------------------------------------------------------


def paused_by_another(timeout_s: float | None) -> tuple[Engine, int, Thread]:
    """A call that another thread paused after its first pass."""
    engine, gate = gated(open_at_once=False)
    llm = llm_around(engine)
    call = Thread(llm.generate, [5], greedy(3), False, timeout_s)
    until(lambda: engine.turns.is_computing)
    (rid,) = engine.open_requests.groups
    pause = Thread(engine.pause, rid)
    until(lambda: engine.turns._visitors == 1)
    gate.open()
    pause.result()
    assert engine.stats().paused == 1
    return engine, rid, call


def test_a_call_waits_until_another_thread_resumes_what_it_has_paused() -> None:
    engine, rid, call = paused_by_another(None)
    call.join(0.05)
    assert call.is_alive()
    engine.resume(rid)
    assert call.result()[0].token_ids == [6, 7, 8]
    assert_all_free(engine)


def test_a_call_whose_request_is_paused_ends_by_its_deadline() -> None:
    engine, _, call = paused_by_another(0.2)
    assert call.result()[0].finish_reason == "timeout"
    assert_all_free(engine)


@pytest.fixture
def alarms() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Installs a function as SIGALRM's handler, for the test."""
    before = signal.getsignal(signal.SIGALRM)

    def install(function: Callable[[], object]) -> None:
        signal.signal(signal.SIGALRM, lambda number, frame: function() and None)

    yield install
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_handler_may_call_while_its_thread_waits_for_the_pass_of_another(alarms: Any) -> None:
    engine, gate = gated(open_at_once=False)
    llm = llm_around(engine)
    call = in_a_pass(llm, gate, [5], greedy(3))
    answers = []

    def handler() -> None:
        gate.open()
        answers.append(llm.generate([70], greedy(2))[0].token_ids)

    alarms(handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    engine.stats()  # waits for the pass, which waits for the handler
    assert answers == [[71, 72]]
    assert call.result()[0].token_ids == [6, 7, 8]
    assert_all_free(engine)


def test_a_stream_whose_opening_is_interrupted_leaves_nothing_queued(
    alarms: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    llm, add = llm_around(engine), engine.scheduler.add

    def handler() -> None:
        raise ZeroDivisionError

    def interrupted(req: Any) -> None:
        signal.raise_signal(signal.SIGALRM)
        add(req)

    alarms(handler)
    monkeypatch.setattr(engine.scheduler, "add", interrupted)
    with pytest.raises(ZeroDivisionError) as caught:
        next(llm.stream([5], greedy(2)))
    assert caught.tb is not None  # and with it all frames: nothing is left to garbage collection
    assert (len(engine.scheduler.waiting), engine.turns.callers) == (0, {})
    assert_all_free(engine)


def test_a_call_that_was_interrupted_twice_is_closed_whoever_keeps_the_exception(
    alarms: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    llm = llm_around(engine)

    def handler() -> None:
        raise ZeroDivisionError

    def interrupted(*args: Any) -> Any:
        signal.raise_signal(signal.SIGALRM)

    def close(call: Any) -> None:
        if sys._getframe(1).f_code.co_name == "_stream":  # the second alarm, before it can do anything
            raise ZeroDivisionError
        Calls.close(llm._calls, call)

    alarms(handler)
    stream = llm.stream([5], greedy(5))
    next(stream)
    monkeypatch.setattr(engine.sampler, "sample", interrupted)
    monkeypatch.setattr(llm._calls, "close", close)
    with pytest.raises(ZeroDivisionError) as caught:
        next(stream)
    assert caught.tb is not None  # and with it the call
    assert engine.turns.callers == {}
    assert_all_free(engine)


def test_a_handler_that_raises_while_a_step_by_hand_is_refused_leaves_other_threads_alive(
    alarms: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Thread.is_alive` marks a thread as ended when it is interrupted."""
    engine, gate = gated(open_at_once=False)
    call = in_a_pass(llm_around(engine), gate, [5], greedy(3))
    is_alive = threading.Thread.is_alive

    def handler() -> None:
        raise ZeroDivisionError

    def asked(thread: threading.Thread) -> bool:
        signal.raise_signal(signal.SIGALRM)
        return is_alive(thread)

    alarms(handler)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "is_alive", asked)
        with pytest.raises(ZeroDivisionError) as caught:
            engine.step()
    assert isinstance(caught.value.__context__, RuntimeError)  # the refusal came before the handler ran
    gate.open()
    assert call.result()[0].token_ids == [6, 7, 8]
    assert_all_free(engine)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_process_forked_while_another_thread_makes_a_pass_can_use_the_engine() -> None:
    engine, gate = gated(open_at_once=False)
    llm = llm_around(engine)
    call = in_a_pass(llm, gate, [5], greedy(3))
    threading.Timer(0.05, gate.open).start()
    child = os.fork()  # waits for the pass to end
    if child == 0:
        signal.alarm(SECONDS)
        code = 1
        try:
            code = 0 if llm.generate([70], greedy(2))[0].token_ids == [71, 72] else 2
            engine.check_integrity()
            code = code if len(engine.turns.callers) + engine.stats().running == 0 else 3
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert call.result()[0].token_ids == [6, 7, 8]
    assert_all_free(engine)


def test_a_step_by_hand_gives_nothing_of_a_stream_which_still_gets_it_all() -> None:
    engine = make_engine()
    llm = llm_around(engine)
    stream = llm.stream([5], greedy(5))
    pieces = [next(stream)]
    rid = engine.add_request([70], greedy(2))
    outputs = [output for _ in range(4) for output in engine.step()]
    assert {output.request_id for output in outputs} == {rid}
    pieces += [next(stream)]
    while engine.has_unfinished():
        assert engine.step() == []
    pieces += stream
    assert [token for piece in pieces for token in piece.token_ids] == following(5, 5)
    assert_all_free(engine)


def test_outputs_that_could_not_be_handed_out_do_not_replace_newer_ones() -> None:
    engine = make_engine()
    rid = engine.add_request([5], greedy(3))
    older, newer = engine.step(), engine.step()
    engine.deliver_later(newer)
    engine.open_requests.hold_again(older)
    assert engine.open_requests.withdraw(rid) == newer
