"""Steps that raise, wherever that is: which requests end, what they keep, and that no slot is lost."""

import logging
import math
import signal
from collections.abc import Callable
from typing import Any

import pytest

from nanoinfer import (
    Engine,
    InvalidRequestError,
    SamplingParams,
)
from nanoinfer.threads.signals import uninterrupted
from tests.helpers.engines import assert_all_free, finish, greedy, make_engine, step


def make_steps(engine: Engine, count: int) -> None:
    for _ in range(count):
        step(engine)


def broken(*args: object) -> None:
    raise MemoryError("no more")


def break_rows(engine: Engine) -> tuple[Any, str]:
    return engine.model_runner.req_to_token_pool, "alloc"


def break_slots(engine: Engine) -> tuple[Any, str]:
    return engine.model_runner.token_to_kv_pool, "alloc"


def break_eviction(engine: Engine) -> tuple[Any, str]:
    return engine.radix_cache, "evict"


def break_sampler(engine: Engine) -> tuple[Any, str]:
    return engine.sampler, "logprobs"


def break_processing(engine: Engine) -> tuple[Any, str]:
    return engine.scheduler, "process_batch_result"


@pytest.mark.parametrize(
    ("where", "when"),
    [
        (break_eviction, 0),
        *[
            (where, when)
            for where in (break_rows, break_slots, break_sampler, break_processing)
            for when in (0, 1, 2, 5)
        ],
    ],
)
@pytest.mark.parametrize("page_size", [1, 4])
def test_whatever_breaks_ends_the_requests_of_the_pass_and_no_slot_is_lost(
    where: Callable[[Engine], tuple[Any, str]], when: int, page_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an EXTEND over a cached prefix, a piece of a prompt, a DECODE; `when` counts the steps before it breaks."""
    engine = make_engine(rows=2, slots=64, page_size=page_size, chunked_prefill_size=8)
    cached = engine.add_request(list(range(51)), greedy(1))
    assert finish(engine)[cached].finished
    rids = [engine.add_request([*range(12), 60 + i, *range(20, 33)], greedy(6)) for i in range(2)]
    waiting = engine.add_request([100], greedy(3))
    for _ in range(when):
        step(engine)
    with monkeypatch.context() as patch:
        patch.setattr(*where(engine), broken)
        with pytest.raises(MemoryError):
            make_steps(engine, 30)  # until what is broken is needed
    engine.check_integrity()
    ended = step(engine)
    failed = {rid for rid, output in ended.items() if output.error is not None}
    assert failed
    assert all(isinstance(ended[rid].error, MemoryError) for rid in failed)
    assert engine.stats().failed == len(failed)
    last = finish(engine)
    for rid in {*rids, waiting} - failed:
        start = 33 if rid in rids else 101
        assert last[rid].token_ids == list(range(start, start + len(last[rid].token_ids)))
        assert last[rid].finish_reason == "length"
    assert_all_free(engine)


def test_a_tokenizer_that_breaks_while_its_last_text_is_asked_for_is_reported_and_loses_no_slot() -> None:
    engine = make_engine()
    rids = [engine.add_request(prompt, greedy(9, stop="yx")) for prompt in ("w", "b")]  # "y" will be held back
    step(engine)
    step(engine)
    detokenizer = engine.scheduler.running[0].detokenizer
    assert detokenizer is not None
    detokenizer.flush = broken  # type: ignore[method-assign, assignment]
    output = engine.abort(rids[0])
    assert output is not None
    assert (output.finish_reason, output.text) == ("abort", "x")
    assert isinstance(output.error, MemoryError)
    assert finish(engine)[rids[1]].text == "cdefghijk"
    assert_all_free(engine)


def test_a_failed_step_is_reported_with_the_end_of_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    rid = engine.add_request([5], SamplingParams(max_new_tokens=4, n=2))
    with monkeypatch.context() as patch:
        patch.setattr(engine.model_runner, "model", broken)
        with pytest.raises(MemoryError) as raised:
            engine.step()
    (output,) = engine.step()
    assert (output.request_id, output.finish_reason, output.error) == (rid, "abort", raised.value)
    stats = engine.stats()
    assert (stats.failed, stats.aborted, stats.finished) == (1, 0, 0)


@pytest.mark.parametrize(("method", "tokens"), [("add", 2), ("flush", 3)])
def test_a_tokenizer_that_breaks_ends_its_request_and_no_other_one(method: str, tokens: int) -> None:
    engine = make_engine()
    rids = [engine.add_request(prompt, greedy(3)) for prompt in ("a", "m")]
    step(engine)
    detokenizer = engine.scheduler.running[0].detokenizer
    setattr(detokenizer, method, broken)
    ended = finish(engine)
    assert [ended[rid].finish_reason for rid in rids] == ["abort", "length"]
    assert isinstance(ended[rids[0]].error, MemoryError)
    assert len(ended[rids[0]].token_ids) == tokens
    assert ended[rids[1]].text == "nop"
    assert (engine.stats().failed, engine.stats().finished) == (1, 1)
    assert_all_free(engine)


def test_an_error_after_the_pass_loses_no_token(caplog: pytest.LogCaptureFixture) -> None:
    """The line is logged when all has been done; a logging filter that raises must not cost the outputs."""
    engine = make_engine()
    rid = engine.add_request([5], greedy(1))
    other = engine.add_request([50], greedy(3))
    log = logging.getLogger("nanoinfer.engine")
    with caplog.at_level(logging.INFO, logger=log.name):
        log.addFilter(broken)
        with pytest.raises(MemoryError):
            engine.step()
        log.removeFilter(broken)
    outputs = step(engine)
    assert (outputs[rid].finish_reason, outputs[rid].token_ids) == ("length", [6])
    assert outputs[other].token_ids == [51, 52]
    assert finish(engine)[other].token_ids == [51, 52, 53]
    assert engine.stats().finished == 2
    assert_all_free(engine)


@pytest.mark.parametrize(
    "fields", [{"extra_key": ("tenant", ["a list"])}, {"timeout_s": 10**400}, {"timeout_s": math.inf}]
)
def test_what_would_break_every_later_step_is_refused_on_arrival(fields: dict[str, Any]) -> None:
    engine = make_engine()
    rid = engine.add_request([5], greedy(2))
    with pytest.raises(InvalidRequestError, match=next(iter(fields))):
        engine.add_request([6], greedy(2), **fields)
    assert finish(engine)[rid].token_ids == [6, 7]
    assert_all_free(engine)


INTERRUPTED = {
    "admission": lambda engine: (engine.cache, "unlock_prefix"),
    "rows": lambda engine: (engine.model_runner.req_to_token_pool, "alloc"),
    "the tree": lambda engine: (engine.radix_cache, "inc_lock_ref"),
    "the model": lambda engine: (engine.model_runner, "model"),
    "the sampler": lambda engine: (engine.sampler, "sample"),
    "a piece of a prompt": lambda engine: (engine.cache, "cache_computed"),
    "the end of a request": lambda engine: (engine.cache, "release"),
    "its slots": lambda engine: (engine.model_runner.token_to_kv_pool, "free"),
}


@pytest.mark.parametrize("where", INTERRUPTED)
@pytest.mark.parametrize("when", range(1, 4))
def test_ctrl_c_leaves_slots_and_books_in_order(monkeypatch: pytest.MonkeyPatch, where: str, when: int) -> None:
    engine = make_engine(rows=3, slots=24, chunked_prefill_size=8, schedule_conservativeness=0.001)
    rids = [engine.add_request(range(base, base + 10), greedy(8)) for base in (5, 50, 5, 80)]  # type: ignore[arg-type]
    owner, name = INTERRUPTED[where](engine)
    original, calls = getattr(owner, name), 0

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        result = original(*args, **kwargs)  # what it has done is not known yet to whoever called it
        calls += 1
        if calls == when:
            signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        finish(engine)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    engine.check_integrity()
    for _ in range(100):
        if not engine.has_unfinished():
            break
        step(engine)
    stats = engine.stats()
    assert stats.finished + stats.aborted == len(rids), "who was interrupted has been aborted"
    assert_all_free(engine)


def test_an_interrupt_is_held_back_and_not_lost_whatever_the_block_does() -> None:
    done = []

    @uninterrupted()
    def inner() -> None:
        signal.raise_signal(signal.SIGINT)
        done.append("inner")

    @uninterrupted()
    def outer() -> None:
        inner()
        done.append("outer")
        raise ZeroDivisionError

    with pytest.raises(KeyboardInterrupt) as raised:
        outer()
    assert done == ["inner", "outer"]
    assert isinstance(raised.value.__context__, ZeroDivisionError)
    with pytest.raises(ZeroDivisionError), uninterrupted():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
