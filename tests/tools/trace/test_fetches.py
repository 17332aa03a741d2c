"""What comes back from storeys is in a trace: by request, position and storey; in words, files, Perfetto and the player."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nanoinfer import Engine, RequestOutput
from nanoinfer.trace import Trace, record
from nanoinfer.trace.events import Fetch
from nanoinfer.trace.fetches import fetched_prefixes
from nanoinfer.trace.perfetto import trace_events
from tests.helpers.engines import greedy, make_engine, serve
from tests.helpers.storeys import storey_of, with_files
from tests.helpers.traces import assert_same

LONG = [*range(40)]
PROMPTS = [LONG, [*range(60, 100)], [*range(20, 60)], [*range(44, 84)]]
ASKS_AGAIN = [*range(40), 3]


def small(host_cache_tokens: int = 128) -> Engine:
    """An engine whose pool holds one of these prompts."""
    engine = make_engine(slots=56, host_cache_tokens=host_cache_tokens)
    storey_of(engine)
    return engine


def from_host() -> tuple[Trace, Engine, RequestOutput]:
    engine = small()
    with record(engine) as trace:
        serve(engine, *PROMPTS, max_new_tokens=1)
        (output,) = serve(engine, ASKS_AGAIN, max_new_tokens=2)
        assert_same(trace, engine)
    return trace, engine, output


def from_files() -> tuple[Trace, Engine, RequestOutput]:
    """Host memory has room for two of these prompts."""
    engine = small(host_cache_tokens=64)
    files = with_files(engine)
    with record(engine) as trace:
        serve(engine, *PROMPTS, max_new_tokens=1)
        assert files.kv
        (output,) = serve(engine, ASKS_AGAIN, max_new_tokens=2)
        assert_same(trace, engine)
    return trace, engine, output


RUNS = pytest.mark.parametrize("make", [from_host, from_files])
Made = Callable[[], tuple[Trace, Engine, RequestOutput]]


@RUNS
def test_a_fetch_is_an_event_with_the_tokens_of_each_storey(make: Made) -> None:
    trace, _, output = make()
    (fetch,) = [fetch for event in trace.events for fetch in event.fetched]
    tiers = output.cached_tokens_by_tier
    assert {storey: end - start for storey, (start, end) in fetch.parts.items()} == {
        storey: tokens for storey, tokens in tiers.items() if tokens and storey != "device"
    }
    state = trace.state().requests[4]
    assert (fetch.request, state.cached_tokens_by_tier) == (4, tiers)
    assert sum(tiers.values()) == state.cached_tokens == 32


def test_one_fetch_may_be_of_both_storeys() -> None:
    fetch = Fetch(0, 16, 32, 48)
    assert fetch.parts == {"host": (16, 32), "disk": (32, 48)}
    assert Fetch(0, 16, 16, 48).parts == {"disk": (16, 48)}
    fetch.check(["host", "disk"])
    for wrong in (Fetch(0, 16, 16, 16), Fetch(0, -1, 16, 16), Fetch(0, 16, 8, 32), Fetch(0, 0, 32, 16)):
        with pytest.raises(ValueError, match="must be positions in order"):
            wrong.check(["host", "disk"])
    with pytest.raises(ValueError, match=r"from the storeys \['host'\]"):
        fetch.check(["host"])


@pytest.mark.parametrize("host_cache_tokens", [32, 96])
def test_what_left_while_room_was_made_is_no_fetch(host_cache_tokens: int, tmp_path: Path) -> None:
    engine = small(host_cache_tokens)
    with_files(engine)
    with record(engine) as trace:
        serve(engine, *PROMPTS, max_new_tokens=1)
        (output,) = serve(engine, ASKS_AGAIN, max_new_tokens=2)
        assert_same(trace, engine)
    assert output.cached_tokens == 0
    assert not [event for event in trace.events if event.fetched]
    assert "fetches" not in trace.describe()
    trace.save(tmp_path / "a.json")
    assert Trace.load(tmp_path / "a.json").describe() == trace.describe()


@RUNS
def test_it_is_said_and_what_enters_the_tree_is_only_what_was_computed(make: Made) -> None:
    trace, _, output = make()
    (sentence,) = [line for line in trace.describe().splitlines() if "fetches" in line]
    where = "host memory" if make is from_host else "files"
    tiers = output.cached_tokens_by_tier
    fetched = tiers["host"] + tiers["disk"]
    assert f"request 4 fetches K/V of {fetched} tokens from {where}" in sentence
    assert f"request 4 is admitted with {output.cached_tokens} of 41 prompt tokens cached" in sentence
    assert "request 4 extends 9 tokens" in sentence
    assert sentence.endswith("9 tokens enter the tree.")
    assert "freed" not in sentence


def test_many_fetches_of_one_step_are_said_in_short() -> None:
    trace, _, _ = from_host()
    event = next(event for event in trace.events if event.fetched)
    event.fetched[:] = [Fetch(4, 16, 32, 48)] * 6
    sentence = trace.describe(event.step)
    assert sentence.count("request 4 fetches K/V of 16 tokens from host memory and 16 from files") == 3
    assert "3 more fetch K/V of 96 tokens" in sentence


@RUNS
def test_a_file_of_version_3_comes_back(make: Made, tmp_path: Path) -> None:
    trace, _, _ = make()
    trace.save(tmp_path / "a.json")
    document = json.loads((tmp_path / "a.json").read_text())
    assert (document["version"], document["engine"]["storeys"]) == (3, trace.storeys)
    loaded = Trace.load(tmp_path / "a.json")
    assert loaded.describe() == trace.describe()
    assert [event.fetched for event in loaded.events] == [event.fetched for event in trace.events]
    loaded.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text()


def test_a_trace_that_begins_later_knows_what_was_fetched_before(tmp_path: Path) -> None:
    engine = small()
    serve(engine, *PROMPTS, max_new_tokens=1)
    engine.add_request(ASKS_AGAIN, greedy(5))
    engine.step()
    with record(engine) as trace:
        assert_same(trace, engine)
        trace.save(tmp_path / "a.json")
        loaded = Trace.load(tmp_path / "a.json")
        assert loaded.state().requests[0].cached_tokens_by_tier == {"device": 0, "host": 32, "disk": 0}


def admitted_again() -> Trace:
    """A request that is paused until others need its slots, and resumed: 32 of its tokens come from host memory."""
    engine = small()
    serve(engine, LONG, max_new_tokens=1)
    with record(engine) as trace:
        request_id = engine.add_request(ASKS_AGAIN, greedy(4))
        engine.step()
        engine.pause(request_id)
        serve(engine, PROMPTS[1], max_new_tokens=1)
        engine.resume(request_id)
        (output,) = engine.step()
        assert_same(trace, engine)
    assert output.cached_tokens_by_tier == {"device": 40, "host": 0, "disk": 0}
    assert [prefix.again for prefix in fetched_prefixes(trace)] == [True]
    return trace


def test_what_is_fetched_at_a_later_admission_is_an_event_and_does_not_count_as_cached() -> None:
    trace = admitted_again()
    assert [fetch.parts for event in trace.events for fetch in event.fetched] == [{"host": (0, 32)}]
    assert trace.state().requests[0].cached_tokens_by_tier == {"device": 40, "host": 0, "disk": 0}


@RUNS
def test_perfetto_has_it_on_the_requests_track(make: Made) -> None:
    trace, _, output = make()
    (mark,) = [entry for entry in trace_events(trace) if entry["name"] == "fetch"]
    (slice_,) = [entry for entry in trace_events(trace) if entry.get("args", {}).get("found in the tree")]
    assert (mark["ph"], mark["pid"], mark["tid"]) == ("i", slice_["pid"], slice_["tid"])
    tiers = output.cached_tokens_by_tier
    assert {storey: mark["args"].get(storey, 0) for storey in ("host", "disk")} | {"device": tiers["device"]} == tiers
    assert mark["args"]["step"] == slice_["args"]["step"]


def test_without_storeys_a_trace_and_its_page_say_nothing_of_them(tmp_path: Path) -> None:
    engine = make_engine()
    with record(engine) as trace:
        serve(engine, LONG, max_new_tokens=1)
    trace.save(tmp_path / "a.json")
    text = (tmp_path / "a.json").read_text()
    assert json.loads(text)["version"] == 2
    assert "storeys" not in text
    assert "fetched" not in text
    page = trace.player().html()
    assert "o-host" not in page
    assert "refine(" not in page
    assert "o-host" in from_host()[0].player().html()
