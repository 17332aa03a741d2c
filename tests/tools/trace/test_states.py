"""Traces: after every step of every kind of run, what is rebuilt from the events is what the engine has, drafts and fetches
among it."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from nanoinfer import Engine, SamplingParams
from nanoinfer.viz.trace import Trace, record
from notebooks.course.explore.token_life import lives_of
from tests.helpers.engines import Clock, finish, greedy, make_engine, serve
from tests.helpers.tiers import tier_of, with_files
from tests.helpers.traces import assert_same
from tests.tools.trace.conftest import ASKS_AGAIN, LONG, PROMPTS, fetched_from

CHANCES = {"add": 0.25, "step": 0.54, "abort": 0.04, "pause": 0.03, "resume": 0.03, "flush": 0.02}
CHANCES |= {"fail": 0.05, "split": 0.04}
TIGHT = {"schedule_conservativeness": 0.1}
DRAFTS = {"drafter": "ngram", "adaptive_drafts": False}
RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "chunks": {"chunked_prefill_size": 5},
    "retraction": {"slots": 40, **TIGHT},
    "retraction in chunks": {"slots": 44, "chunked_prefill_size": 4, **TIGHT},
    "pages": {"page_size": 4, "chunked_prefill_size": 8},
    "pages, little room": {"page_size": 4, "slots": 48, **TIGHT},
    "no cache": {"disable_radix_cache": True},
    "no cache, little room": {"disable_radix_cache": True, "slots": 40, **TIGHT},
    "groups": {"num_scheduler_steps": 2},
    "groups, little room": {"num_scheduler_steps": 8, "slots": 40, **TIGHT},
    "groups, pages and chunks": {"num_scheduler_steps": 8, "page_size": 4, "slots": 48, "chunked_prefill_size": 8},
    "drafts": DRAFTS,
    "drafts when they pay": {"drafter": "ngram"},
    "drafts, little room": {**DRAFTS, **TIGHT, "drafter": ("tree", "ngram"), "num_draft_tokens": 5, "slots": 32},
    "drafts, pages and chunks": {**DRAFTS, "page_size": 4, "slots": 48, "chunked_prefill_size": 8},
    "lfu": {"eviction_policy": "lfu", "slots": 48, "schedule_policy": "fcfs"},
}


@pytest.mark.parametrize("fields", RUNS.values(), ids=RUNS.keys())
def test_the_state_after_every_step_is_the_engines(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Random requests from a few prefixes, with namespaces, completions, aborts, pauses, deadlines and failing steps."""
    rng, clock = np.random.default_rng(7), Clock()
    engine = make_engine(**{"rows": 4, "slots": 96, **fields}, clock=clock)
    happened = set()
    with record(engine) as trace:
        for _ in range(300):
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
                paused = [req.request_id for req in engine.scheduler.paused] if what == "resume" else []
                getattr(engine, what)(int(rng.choice(sorted(paused) or list(engine.open_requests.groups))))
            elif what == "flush":
                engine.flush_cache()
            elif what == "split":
                engine.radix_cache.match_prefix([1, 2, 3, 4, 5, 6, 7, 8][: rng.integers(1, 9)])
            elif what == "fail":
                fail_once(
                    engine, rng.choice(["model", "sampler", "slots", "rows"], p=[0.42, 0.42, 0.08, 0.08]), monkeypatch
                )
            assert_same(trace, engine)
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


@pytest.mark.parametrize("fields", [{}, {"page_size": 4, "chunked_prefill_size": 8}, {"drafter": "tree"}])
def test_what_comes_back_from_host_memory_is_in_the_trace(fields: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    engine = make_engine(
        rows=3, slots=72, host_cache_tokens=256, schedule_conservativeness=0.1, clock=Clock(), **fields
    )
    with record(engine) as trace:
        for _ in range(60):
            if rng.random() < 0.4:
                start, length = 40 * int(rng.integers(3)), int(rng.choice([20, 36]))
                engine.add_request([*range(start, start + length)], greedy(int(rng.integers(1, 20))))
            engine.step()
            assert_same(trace, engine)
        while engine.has_unfinished():
            engine.step()
            assert_same(trace, engine)
    assert engine.stats().host_fetched_tokens
    assert engine.stats().retractions


# --- drafts and tiers ----------------------------------------------------------------------------------------------


def test_what_a_verify_computed_and_brought_is_in_its_entries(drafted: Trace) -> None:
    (event,) = [event for event in drafted.events if event.drafted]
    first, second = event.batch
    assert (event.mode, event.drafted, event.accepted) == ("VERIFY", 3, 2)
    assert (first.start, first.end, first.accepted, first.kv_len) == (7, 11, 2, 10)
    assert "".join(map(chr, first.drafts or ())) == "dea"
    assert "".join(map(chr, first.tokens)) == "def"
    assert (second.start, second.end, second.drafts, second.accepted, second.kv_len) == (3, 4, [], 0, 4)
    right, wrong = (lives_of(drafted, 0, position)[-1] for position in (9, 10))
    assert (right.written, wrong.written) == (event.step, event.step + 1), "its own K/V, not that of a wrong draft"


def test_a_trace_that_starts_later_knows_the_drafts_and_fetches_before() -> None:
    engine = make_engine(drafter="ngram", adaptive_drafts=False)
    engine.add_request("abcdeab", greedy(12))
    engine.step()
    engine.step()
    with record(engine) as trace:
        assert_same(trace, engine)
        assert (trace.requests[0].drafted_tokens, trace.requests[0].accepted_tokens) == (3, 2)
        finish(engine)
    engine = make_engine(slots=56, host_cache_tokens=128)
    tier_of(engine)
    serve(engine, *PROMPTS, max_new_tokens=1)
    engine.add_request(ASKS_AGAIN, greedy(5))
    engine.step()
    with record(engine) as trace:
        assert_same(trace, engine)
        assert trace.state().requests[0].cached_tokens_by_tier == {"device": 0, "host": 32, "disk": 0}


@pytest.mark.parametrize("files", [False, True])
def test_a_fetch_is_an_event_with_the_tokens_of_each_tier(files: bool) -> None:
    trace, _, output = fetched_from(files)
    (fetch,) = [fetch for event in trace.events for fetch in event.fetched]
    tiers = output.cached_tokens_by_tier
    assert {tier: end - start for tier, (start, end) in fetch.parts.items()} == {
        tier: tokens for tier, tokens in tiers.items() if tokens and tier != "device"
    }
    state = trace.state().requests[4]
    assert (fetch.request, state.cached_tokens_by_tier) == (4, tiers)
    assert sum(tiers.values()) == state.cached_tokens == 32


@pytest.mark.parametrize("host_cache_tokens", [32, 96])
def test_what_left_while_room_was_made_is_no_fetch(host_cache_tokens: int) -> None:
    engine = make_engine(slots=56, host_cache_tokens=host_cache_tokens)
    tier_of(engine)
    with_files(engine)
    with record(engine) as trace:
        serve(engine, *PROMPTS, max_new_tokens=1)
        (output,) = serve(engine, ASKS_AGAIN, max_new_tokens=2)
        assert_same(trace, engine)
    assert output.cached_tokens == 0
    assert not [event for event in trace.events if event.fetched]


def test_what_is_fetched_at_a_later_admission_is_an_event_and_does_not_count_as_cached() -> None:
    engine = make_engine(slots=56, host_cache_tokens=128)
    tier_of(engine)
    serve(engine, LONG, max_new_tokens=1)
    with record(engine) as trace:
        request_id = engine.add_request(ASKS_AGAIN, greedy(4))
        engine.step()
        engine.pause(request_id)
        serve(engine, PROMPTS[1], max_new_tokens=1)
        engine.resume(request_id)
        (output,) = engine.step()
        assert_same(trace, engine)
    assert [fetch.parts for event in trace.events for fetch in event.fetched] == [{"host": (0, 32)}]
    device = {"device": 40, "host": 0, "disk": 0}
    assert output.cached_tokens_by_tier == trace.state().requests[0].cached_tokens_by_tier == device
