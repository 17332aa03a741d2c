"""Traces: after every step of every kind of run, what is rebuilt from the events is what the engine has."""

import gc
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch

from nanoinfer import LLM, Engine, SamplingParams
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.requests.req import Req
from nanoinfer.trace import Recorder, Trace, TraceState, record
from nanoinfer.trace.events import from_runs
from nanoinfer.trace.state import NodeState
from tests.helpers.engines import V, greedy, make_engine, model_of, serve

# --- the live engine and the rebuilt state, in the same words ---------------------------------------------------------


def tree_of(node: TreeNode | NodeState) -> tuple[Any, ...]:
    """A node with everything below it."""
    children = node.children.values() if isinstance(node, TreeNode) else node.children
    key, value = ([int(number) for number in numbers] for numbers in (node.key, node.value))
    return (
        (key, value, node.lock_ref, node.last_access_time, node.hit_count, node.creation_time),
        [tree_of(child) for child in children],
    )


def of_engine(engine: Engine) -> dict[str, Any]:
    def key(req: Req) -> tuple[int, int]:
        return req.request_id, engine.open_requests.groups[req.request_id].reqs.index(req)

    scheduler, pool, rows = engine.scheduler, engine.cache.token_to_kv_pool, engine.cache.rows
    unfinished = (*scheduler.running, *scheduler.waiting, *scheduler.paused)
    return {
        "free": pool.free_slots().tolist(),
        "rows": {req.req_pool_idx: rows[req.req_pool_idx, : req.allocated_len].tolist() for req in scheduler.running},
        "slots": sorted(rows[r.req_pool_idx, r.tree_len : r.allocated_len].tolist() for r in scheduler.running),
        "tokens": {key(req): req.token_ids[: req.num_tokens].tolist() for req in unfinished},
        "kv_len": {key(req): req.kv_len for req in scheduler.running},
        "cached": {key(req): req.cached_tokens for req in unfinished},
        "drafts": {key(req): (req.drafted_tokens, req.accepted_tokens) for req in unfinished},
        "waiting": sorted(map(key, scheduler.waiting)),
        "retracted": sorted(key(req) for req in scheduler.waiting if req.num_retractions),
        "paused": sorted(map(key, scheduler.paused)),
        "prefilling": [key(req) for req in (scheduler.prefilling,) if req is not None],
        "tree": tree_of(engine.radix_cache.root)[1],
        "namespaces": [repr(child.edge[0]) for child in engine.radix_cache.root.children.values()],
        "protected": engine.radix_cache.protected_size(),
        "evictable": engine.radix_cache.evictable_size(),
    }


def of_trace(state: TraceState) -> dict[str, Any]:
    live = [req for req in state.requests.values() if req.status != "ended"]
    names = {id(req): (req.request.request_id, req.request.completion) for req in live}
    return {
        "free": state.free_slots(),
        "rows": state.rows(),
        "slots": sorted(state.owners().values()),
        "tokens": {names[id(req)]: req.tokens for req in live},
        "kv_len": {names[id(req)]: req.kv_len for req in state.running},
        "cached": {names[id(req)]: req.cached_tokens for req in live},
        "drafts": {names[id(req)]: (req.drafted_tokens, req.accepted_tokens) for req in live},
        "waiting": sorted(names[id(req)] for req in state.waiting),
        "retracted": sorted(names[id(req)] for req in state.waiting if req.status == "retracted"),
        "paused": sorted(names[id(req)] for req in live if req.status == "paused"),
        "prefilling": [names[id(req)] for req in state.running if req.status == "prefilling"],
        "tree": tree_of(state.root)[1],
        "namespaces": [repr(None) if child.extra_key is None else child.extra_key for child in state.root.children],
        "protected": state.protected_size(),
        "evictable": state.evictable_size(),
    }


def assert_same(trace: Trace, engine: Engine, step: int | None = None) -> None:
    state = trace.state(step)
    state.check_integrity()
    engine.check_integrity()
    wanted, got = of_engine(engine), of_trace(state)
    for name, value in wanted.items():
        assert got[name] == value, name
    assert state.free == engine.cache.token_to_kv_pool.available_size()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


CHANCES = {
    "add": 0.25,
    "step": 0.54,
    "abort": 0.04,
    "pause": 0.03,
    "resume": 0.03,
    "flush": 0.02,
    "fail": 0.05,
    "split": 0.04,
}
RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "chunks": {"chunked_prefill_size": 5},
    "retraction": {"slots": 40, "schedule_conservativeness": 0.1},
    "retraction in chunks": {"slots": 44, "schedule_conservativeness": 0.1, "chunked_prefill_size": 4},
    "pages": {"page_size": 4, "chunked_prefill_size": 8},
    "pages, little room": {"page_size": 4, "slots": 48, "schedule_conservativeness": 0.1},
    "no cache": {"disable_radix_cache": True},
    "no cache, little room": {"disable_radix_cache": True, "slots": 40, "schedule_conservativeness": 0.1},
    "groups": {"num_scheduler_steps": 2},
    "groups, little room": {"num_scheduler_steps": 8, "slots": 40, "schedule_conservativeness": 0.1},
    "groups, pages and chunks": {"num_scheduler_steps": 8, "page_size": 4, "slots": 48, "chunked_prefill_size": 8},
    "drafts": {"drafter": "ngram", "adaptive_drafts": False},
    "drafts when they pay": {"drafter": "ngram"},
    "drafts, little room": {
        "drafter": ("tree", "ngram"),
        "adaptive_drafts": False,
        "num_draft_tokens": 5,
        "slots": 32,
        "schedule_conservativeness": 0.1,
    },
    "drafts, pages and chunks": {
        "drafter": ["ngram"],
        "adaptive_drafts": False,
        "page_size": 4,
        "slots": 48,
        "chunked_prefill_size": 8,
    },
    "lfu": {"eviction_policy": "lfu", "slots": 48, "schedule_policy": "fcfs"},
}


@pytest.mark.parametrize("fields", RUNS.values(), ids=RUNS.keys())
def test_the_state_after_every_step_is_the_engines(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Random requests from a few prefixes, with namespaces, completions, aborts, pauses, deadlines and failing steps."""
    rng, clock = np.random.default_rng(7), Clock()
    engine = make_engine(**{"rows": 4, "slots": 96, **fields}, clock=clock)
    happened = set()
    with record(engine) as trace:
        for _ in range(150):
            clock.now += 1.0
            what = rng.choice(list(CHANCES), p=list(CHANCES.values()))
            if what == "add":
                prompt = [1, 2, 3, 4, 5, 6, 7, 8][: rng.integers(1, 9)] + rng.integers(
                    0, 3, rng.integers(1, 9)
                ).tolist()
                n = int(rng.choice([1, 2], p=[0.8, 0.2]))
                params = SamplingParams(max_new_tokens=int(rng.integers(1, 16)), temperature=float(n > 1), n=n)
                timeout = None if rng.random() < 0.8 else float(rng.integers(1, 12))
                engine.add_request(
                    prompt, params, extra_key=rng.choice([None, "lora"], p=[0.8, 0.2]), timeout_s=timeout
                )
            elif what == "step":
                engine.step()
            elif what == "abort" and engine.open_requests.groups:
                engine.abort(int(rng.choice(list(engine.open_requests.groups))))
            elif what in ("pause", "resume") and engine.open_requests.groups:
                getattr(engine, what)(int(rng.choice(list(engine.open_requests.groups))))
            elif what == "flush":
                engine.flush_cache()
            elif what == "split":
                engine.radix_cache.match_prefix([1, 2, 3, 4, 5, 6, 7, 8][: rng.integers(1, 9)])
            elif what == "fail":
                fail_once(engine, rng.choice(["model", "sampler", "slots", "rows"]), monkeypatch)
            assert_same(trace, engine)
            assert_same(trace, engine, step=None)
        for request_id in engine.open_requests.groups:
            engine.resume(request_id)
        while engine.has_unfinished():
            engine.step()
            assert_same(trace, engine)
            assert_same(trace, engine, step=len(trace))
    for event, state in trace.states():
        state.check_integrity()
        happened |= {event.mode} | {operation[0] for operation in event.tree} | {ended.reason for ended in event.ended}
        happened |= {name for name in ("retracted", "paused", "resumed") if getattr(event, name)}
        happened |= {"accepted"} if event.accepted else set()
        happened |= {"rejected"} if event.error is None and event.accepted < event.drafted else set()
    wanted = {"EXTEND", "DECODE", "START", "BETWEEN", "FAILED", "length", "abort", "error", "timeout"}
    wanted |= {"paused", "resumed"}
    wanted |= set() if fields.get("disable_radix_cache") else {"add", "split", "remove"}
    wanted |= {"VERIFY", "accepted", "rejected"} if fields.get("adaptive_drafts") is False else set()
    wanted |= {"retracted"} if "schedule_conservativeness" in fields else set()
    assert wanted <= happened


class OnPurpose(Exception):
    pass


def fail_once(engine: Engine, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise OnPurpose

    owner, name = {
        "model": (engine.model_runner, "model"),
        "sampler": (engine.sampler, "sample"),
        "slots": (engine.model_runner.token_to_kv_pool, "alloc"),
        "rows": (engine.model_runner.req_to_token_pool, "alloc"),
    }[where]
    with monkeypatch.context() as patch, suppress(OnPurpose):
        patch.setattr(owner, name, fail)
        engine.step()


def test_a_trace_started_in_the_middle_begins_with_a_snapshot() -> None:
    engine = make_engine(rows=3, slots=32, chunked_prefill_size=4, schedule_conservativeness=0.1)
    for i in range(5):
        engine.add_request([1, 2, 3, 4, i], greedy(12), extra_key="b" if i == 3 else None)
    rid = engine.add_request([9, 8, 7], SamplingParams(max_new_tokens=3, n=2))
    for _ in range(40):
        if not engine.scheduler.retractions:
            engine.step()
    assert engine.scheduler.retractions
    for request_id in (0, rid):
        engine.pause(request_id)
    with record(engine) as trace:
        assert [event.mode for event in trace.events] == ["START"]
        assert_same(trace, engine)
        assert_same(trace, engine, step=0)
        assert [request.completion for request in trace.requests if request.request_id == rid] == [0, 1]
        engine.step()
        for request_id in (0, rid):
            engine.resume(request_id)
            assert_same(trace, engine)
        while engine.has_unfinished():
            engine.step()
            assert_same(trace, engine)
    assert all(req.status == "ended" for req in trace.state().requests.values())


def test_a_row_of_a_chunked_prompt_and_its_place_are_in_the_trace() -> None:
    engine = make_engine(chunked_prefill_size=4)
    with record(engine) as trace:
        serve(engine, range(1, 11), max_new_tokens=2)
    entries = [(event.mode, entry.start, entry.end, entry.tokens) for event in trace.events for entry in event.batch]
    assert entries == [
        ("EXTEND", 0, 4, []),
        ("EXTEND", 4, 8, []),
        ("EXTEND", 8, 10, [11]),
        ("DECODE", 10, 11, [12]),
    ]
    assert trace.step(2) is trace.step(-3)


# --- the engine does not notice ---------------------------------------------------------------------------------------


def test_tokens_are_the_same_with_and_without(story: LLM) -> None:
    prompts = ["Once upon a time there was a fox", "Once upon a time there was a bear"]
    for params in (SamplingParams(max_new_tokens=8, temperature=0), SamplingParams(max_new_tokens=8, seed=3, n=2)):
        plain = [out.token_ids for output in story.generate(prompts, params, use_tqdm=False) for out in output.outputs]
        with record(story) as trace:
            outputs = story.generate(prompts, params, use_tqdm=False)
        assert [out.token_ids for output in outputs for out in output.outputs] == plain
        assert [req.output_ids for req in trace.state().requests.values()] == plain


def test_afterwards_the_engine_is_as_it_was() -> None:
    engine = make_engine()
    owners = (engine, engine.scheduler, engine.radix_cache)
    before = [dict(vars(owner)) for owner in owners]
    with record(engine) as trace:
        assert [set(vars(owner)) - set(old) for owner, old in zip(owners, before, strict=True)] != [set()] * 3
    assert [vars(owner).keys() for owner in owners] == [old.keys() for old in before]
    serve(engine, [1, 2, 3])
    assert len(trace) == 0
    assert len(trace.events) == 1
    trace.stop()  # again: nothing left to do


def test_an_exception_in_the_block_ends_the_recording() -> None:
    engine = make_engine()
    traces = []

    def interrupted() -> None:
        with record(engine) as trace:
            traces.append(trace)
            serve(engine, [1, 2, 3])
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    (trace,) = traces
    steps = len(trace)
    assert steps == 4
    serve(engine, [1, 2, 3])
    assert len(trace) == steps
    assert "step" not in vars(engine)


def test_a_step_that_raises_is_recorded_and_the_recording_goes_on() -> None:
    engine = make_engine()
    model_of(engine).fail_at = 2
    with record(engine) as trace:
        rid = engine.add_request([1, 2, 3], greedy(4))
        engine.step()
        with pytest.raises(RuntimeError, match="the model broke"):
            engine.step()
        assert [output.request_id for output in engine.step()] == [rid]
        serve(engine, [1, 2, 4])
        assert_same(trace, engine)
    failed = trace.step(2)
    assert (failed.mode, failed.error) == ("DECODE", "RuntimeError: the model broke")
    assert failed.ended == [(0, "error")]
    assert failed.batch[0].tokens == []


def test_each_pass_of_a_group_is_a_step_of_the_trace_with_its_own_tokens_and_slots() -> None:
    engine = make_engine(num_scheduler_steps=3)
    with record(engine) as trace:
        engine.add_request([1, 2, 3], greedy(9))
        short = engine.add_request([50, 51, 52], greedy(3))
        engine.step()
        assert engine.step()[1].request_id == short
        assert_same(trace, engine)
        model_of(engine).fail_at = 6  # the second pass of the next group
        with pytest.raises(RuntimeError, match="the model broke"):
            engine.step()
        engine.step()
        assert_same(trace, engine)
    passes = [
        (e.mode, [(entry.request, entry.start, entry.tokens) for entry in e.batch]) for e in trace.events if e.step
    ]
    assert passes[1:6] == [
        ("DECODE", [(0, 3, [5]), (1, 3, [54])]),
        ("DECODE", [(0, 4, [6]), (1, 4, [55])]),
        ("DECODE", [(0, 5, [7])]),
        ("DECODE", [(0, 6, [8])]),
        ("DECODE", [(0, 7, [])]),
    ]
    ends = [(event.step, ended.reason) for event in trace.events for ended in event.ended]
    assert ends == [(3, "length"), (6, "error")]
    allocated = [from_runs(entry.allocated) for entry in trace.step(2).batch]
    assert [len(slots) for slots in allocated] == [3, 2], "three passes, and no slot for a last token"
    assert all(
        from_runs(entry.slots) == [slots[0]] for entry, slots in zip(trace.step(2).batch, allocated, strict=True)
    )
    assert trace.step(3).batch[0].allocated == []
    trace.timeline()


def test_two_recorders_at_once_are_refused_and_the_first_goes_on() -> None:
    engine = make_engine()
    with record(engine) as trace:
        with pytest.raises(ValueError, match=r"already being recorded.*llm\.trace"), record(engine):
            pass
        serve(engine, [1, 2, 3])
    assert len(trace) == 4
    with record(engine) as second:
        serve(engine, [1, 2, 3])
    assert len(second) == 4


@pytest.mark.parametrize("engine", [None, "story", object()])
def test_only_engines_can_be_recorded(engine: Any) -> None:
    with pytest.raises(ValueError, match="engine"), record(engine):
        pass


def test_methods_replaced_while_recording_are_used_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    calls = []
    with record(engine) as trace:
        original = RadixCache._append
        monkeypatch.setattr(RadixCache, "_append", lambda self, *a: (calls.append(a), original(self, *a))[1])
        recorded_step = engine.step
        engine.step = lambda: recorded_step()  # type: ignore[method-assign]
        ours = engine.step
        serve(engine, [1, 2, 3])
    assert calls
    assert engine.step is ours, "another wrapper, around ours: not ours to take away"
    steps = len(trace)
    serve(engine, [1, 2, 3])
    assert len(trace) == steps == 4


def test_no_request_node_or_engine_is_kept_alive() -> None:
    engine = make_engine()
    with record(engine) as trace:
        rid = engine.add_request([1, 2, 3], greedy(3))
        (req,) = engine.open_requests.groups[rid].reqs
        ended = weakref.ref(req)
        del req
        while engine.has_unfinished():
            engine.step()
        engine.last_batch, engine.scheduler.planned = None, []  # what the engine itself still looks at
        engine.scheduler.waiting._ranked = []
        gc.collect()
        assert ended() is None, "while the recording still goes on"
    assert trace.writer is None
    gone = weakref.ref(engine)
    del engine
    gc.collect()
    assert gone() is None
    assert trace.state().requests[0].output_ids == [4, 5, 6]


def test_a_trace_holds_numbers_and_text_only() -> None:
    engine = make_engine(page_size=4)
    with record(engine) as trace:
        serve(engine, [1, 2, 3, 4, 5], "abcdefgh")

    def kinds(value: Any) -> set[type]:
        if isinstance(value, dict):
            value = [*value.keys(), *value.values()]
        if isinstance(value, list | tuple):
            return set().union(*map(kinds, value)) if value else set()
        return kinds(list(vars(value).values())) if hasattr(value, "__dict__") else {type(value)}

    assert kinds([trace.events, trace.requests, trace.engine]) <= {int, float, str, bool, type(None)}


def test_an_event_costs_what_happened_not_the_size_of_pool_and_tree() -> None:
    """Function calls of a decode step, with a tree of 3 and of 300 nodes."""
    from tests.helpers.fakes import counted_calls

    def calls(num_prompts: int) -> int:
        engine = make_engine(slots=4096)
        serve(engine, *([i % V, i // V, 7] for i in range(num_prompts)), max_new_tokens=2)
        with record(engine):
            engine.add_request([1, 2, 3], greedy(8))
            engine.step()
            with counted_calls() as counted:
                engine.step()
        return sum(counted.values())

    assert calls(300) == calls(3)


# --- LLM(trace=True) and reading --------------------------------------------------------------------------------------


def test_an_llm_keeps_its_trace(checkpoint: Callable[..., Any]) -> None:
    llm = LLM(checkpoint("llama"), trace=True, max_running_requests=2)
    assert llm.trace is not None
    llm.generate([[1, 2, 3]], SamplingParams(max_new_tokens=3), use_tqdm=False)
    assert len(llm.trace) == 3
    assert repr(llm.trace) == "<Trace: 3 steps (1 EXTEND, 2 DECODE), 1 requests>"
    llm.trace.stop()
    llm.generate([[1, 2, 3]], SamplingParams(max_new_tokens=3), use_tqdm=False)
    assert len(llm.trace) == 3
    assert LLM(checkpoint("llama"), max_running_requests=2).trace is None
    with pytest.raises(ValueError, match="trace='yes'"):
        LLM(checkpoint("llama"), trace="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize("step", [4, -4, 99])
def test_a_step_that_is_not_there_is_refused(step: int) -> None:
    engine = make_engine()
    with record(engine) as trace:
        serve(engine, [1, 2, 3], max_new_tokens=3)
    with pytest.raises(ValueError, match=rf"step={step}: must be in 1\.\.3"):
        trace.step(step)
    if step > 0:
        with pytest.raises(ValueError, match=rf"step={step}: must be in 0\.\.3"):
            trace.state(step)


def test_pool_slots_are_runs_in_the_order_of_the_tokens() -> None:
    from nanoinfer.trace.events import from_runs, to_runs

    for slots in ([], [5], [0, 1, 2], [7, 3, 4, 5, 9, 8], [4, 4]):
        assert from_runs(to_runs(np.array(slots, dtype=np.int32))) == slots
    assert to_runs(torch.arange(3, 9).numpy()) == [3, 6]


def test_a_recorder_without_a_block_stops_on_stop() -> None:
    engine = make_engine()
    recorder = Recorder(engine)
    serve(engine, [1, 2, 3])
    recorder.stop()
    serve(engine, [1, 2, 3])
    assert len(recorder.trace) == 4
