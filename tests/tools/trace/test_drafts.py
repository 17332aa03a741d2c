"""What drafts and storeys add to a trace: every token is in it, which drafts were accepted, and what was fetched."""

from typing import Any

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.trace import Trace, record
from notebooks.course.explore.lives import lives_of
from tests.helpers.engines import finish, greedy, make_engine, serve
from tests.helpers.storeys import storey_of, with_files
from tests.helpers.traces import assert_same
from tests.tools.trace.conftest import ASKS_AGAIN, LONG, PROMPTS, fetched_from

TEXTS = ["Tom said hello. Tom said hello. Tom said", "The fox ran. The fox ran. The"]
DRAFTERS: dict[str, dict[str, Any]] = {
    "ngram": {"drafter": "ngram"},
    "model": {"drafter": "model", "draft_model": "story"},
    "tree and ngram": {"drafter": ("tree", "ngram")},
}


@pytest.mark.parametrize("options", DRAFTERS.values(), ids=DRAFTERS.keys())
@pytest.mark.parametrize("temperature", [0.0, 0.3])
def test_the_tokens_in_the_trace_are_those_of_the_outputs(options: dict[str, Any], temperature: float) -> None:
    fields = {"max_total_tokens": 1024, "max_running_requests": 4, "page_size": 4, "adaptive_drafts": False}
    llm = LLM("story", **fields, **options)
    params = SamplingParams(max_new_tokens=40, temperature=temperature, seed=5, ignore_eos=True)
    with record(llm) as trace:
        outputs = llm.generate(TEXTS, params, use_tqdm=False)
        outputs += llm.generate(TEXTS, params, use_tqdm=False)  # now the tree knows them
        assert_same(trace, llm.engine)
    wanted = [output.outputs[0].token_ids for output in outputs]
    sampled: list[list[int]] = [[] for _ in wanted]
    for event in trace.events:
        for entry in event.batch:
            sampled[entry.request] += entry.tokens
    assert sampled == [req.output_ids for req in trace.state().requests.values()] == wanted
    counts = [(req.drafted_tokens, req.accepted_tokens) for req in trace.state().requests.values()]
    assert counts == [(output.outputs[0].drafted_tokens, output.outputs[0].accepted_tokens) for output in outputs]
    assert sum(drafted for drafted, _ in counts) > 0


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
    storey_of(engine)
    serve(engine, *PROMPTS, max_new_tokens=1)
    engine.add_request(ASKS_AGAIN, greedy(5))
    engine.step()
    with record(engine) as trace:
        assert_same(trace, engine)
        assert trace.state().requests[0].cached_tokens_by_tier == {"device": 0, "host": 32, "disk": 0}


@pytest.mark.parametrize("files", [False, True])
def test_a_fetch_is_an_event_with_the_tokens_of_each_storey(files: bool) -> None:
    trace, _, output = fetched_from(files)
    (fetch,) = [fetch for event in trace.events for fetch in event.fetched]
    tiers = output.cached_tokens_by_tier
    assert {storey: end - start for storey, (start, end) in fetch.parts.items()} == {
        storey: tokens for storey, tokens in tiers.items() if tokens and storey != "device"
    }
    state = trace.state().requests[4]
    assert (fetch.request, state.cached_tokens_by_tier) == (4, tiers)
    assert sum(tiers.values()) == state.cached_tokens == 32


@pytest.mark.parametrize("host_cache_tokens", [32, 96])
def test_what_left_while_room_was_made_is_no_fetch(host_cache_tokens: int) -> None:
    engine = make_engine(slots=56, host_cache_tokens=host_cache_tokens)
    storey_of(engine)
    with_files(engine)
    with record(engine) as trace:
        serve(engine, *PROMPTS, max_new_tokens=1)
        (output,) = serve(engine, ASKS_AGAIN, max_new_tokens=2)
        assert_same(trace, engine)
    assert output.cached_tokens == 0
    assert not [event for event in trace.events if event.fetched]


def test_what_is_fetched_at_a_later_admission_is_an_event_and_does_not_count_as_cached() -> None:
    engine = make_engine(slots=56, host_cache_tokens=128)
    storey_of(engine)
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
