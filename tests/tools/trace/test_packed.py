"""DECODE passes are noted in packed form: cheap in the engine's thread, and the same events to whoever reads them."""

from contextlib import nullcontext, suppress

import pytest

from nanoinfer.trace import record
from nanoinfer.trace.events import BatchEntry, TraceEvent
from nanoinfer.trace.joined import copied
from nanoinfer.trace.packed import PackedDecode, unpack
from tests.helpers.engines import greedy, make_engine, model_of, serve
from tests.helpers.fakes import counted_calls

# --- what a recording costs the engine --------------------------------------------------------------------------------


def calls_of_a_decode(streams: int, recorded: bool) -> int:
    """Function calls of a decode step of so many requests."""
    engine = make_engine(rows=streams, slots=4096)
    with record(engine) if recorded else nullcontext():
        for i in range(streams):
            engine.add_request([i + 1, 2, 3], greedy(8))
        for _ in range(3):
            engine.step()
        with counted_calls() as counted:
            engine.step()
    return sum(counted.values())


def test_recording_a_decode_takes_a_call_per_request_and_a_bounded_number_besides() -> None:
    extra = {streams: calls_of_a_decode(streams, True) - calls_of_a_decode(streams, False) for streams in (1, 16)}
    assert extra[16] - extra[1] <= 15
    assert extra[1] <= 75


def test_no_event_is_made_of_a_decode_until_somebody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    unpacked = PackedDecode.unpacked
    monkeypatch.setattr(PackedDecode, "unpacked", lambda self: (made.append(self.step), unpacked(self))[1])
    engine = make_engine()
    with record(engine) as trace:
        serve(engine, [1, 2, 3], max_new_tokens=6)
        assert len(trace) == 6
        assert made == []
    assert made == [], "not even when it ends"
    assert [event.step for event in trace.events if event.is_step] == [1, 2, 3, 4, 5, 6]
    assert made == [2, 3, 4, 5, 6]
    before = trace.events[3]
    assert trace.events[3] is before
    assert len(made) == 5, "each is made once"


def test_passes_of_the_same_requests_share_their_numbers() -> None:
    engine = make_engine()
    with record(engine) as trace:
        engine.add_request([1, 2, 3], greedy(9))
        engine.add_request([50, 51, 52], greedy(3))
        while engine.has_unfinished():
            engine.step()
    passes = [event.requests for event in trace._events if isinstance(event, PackedDecode)]
    assert passes == [(0, 1)] * 2 + [(0,)] * 6
    assert len({id(requests) for requests in passes}) == 2


# --- what is read -----------------------------------------------------------------------------------------------------


def test_what_is_unpacked_says_what_was_packed() -> None:
    ends, tokens = (
        b"".join(n.to_bytes(size, "little") for n in numbers) for size, numbers in ((4, (9, 4)), (8, (7, 8)))
    )
    packed = PackedDecode(3, 1.5, 0.25, 20, (5, 2), ends, ends, tokens, None, None)
    entries = [BatchEntry(5, 8, 9, [9, 1], [7]), BatchEntry(2, 3, 4, [4, 1], [8])]
    assert packed.unpacked() == TraceEvent(3, "DECODE", 1.5, 0.25, 20, batch=entries)
    others = TraceEvent(3, "DECODE", 1.5, 0.25, 20, arrived=[6])
    assert packed._replace(others=others).unpacked() == TraceEvent(
        3, "DECODE", 1.5, 0.25, 20, arrived=[6], batch=entries
    )
    paged = packed._replace(allocated=[[8, 4], []]).unpacked()
    assert [entry.allocated for entry in paged.batch] == [[8, 4], []]


def test_unpacking_goes_on_where_it_has_stopped() -> None:
    packed = PackedDecode(1, 0.0, 0.0, 0, (), b"", b"", b"", None, None)
    events = [packed, packed]
    assert unpack(events, 1) == 2  # type: ignore[arg-type]
    assert events == [packed, packed.unpacked()]


@pytest.mark.parametrize("options", [{}, {"page_size": 4}, {"num_scheduler_steps": 3}])
def test_a_decode_that_fails_has_a_batch_without_tokens(options: dict[str, int]) -> None:
    engine = make_engine(**options)
    model_of(engine).fail_at = 3
    with record(engine) as trace:
        engine.add_request([1, 2, 3], greedy(9))
        for _ in range(2 if options.get("num_scheduler_steps") else 3):
            with suppress(RuntimeError):
                engine.step()
    assert [[entry.tokens for entry in event.batch] for event in trace.events if event.is_step] == [[[4]], [[5]], [[]]]
    assert trace.step(3).error == "RuntimeError: the model broke"


def test_a_copy_is_as_packed_as_the_trace_and_does_not_grow() -> None:
    engine = make_engine()
    with record(engine) as trace:
        engine.add_request([1, 2, 3], greedy(9))
        for _ in range(4):
            engine.step()
        copy = copied(trace)
        assert sum(isinstance(event, PackedDecode) for event in copy._events) == 3
        events = copy.events
        assert any(isinstance(event, PackedDecode) for event in trace._events), (
            "reading the copy is nothing to the trace"
        )
        assert trace.events == events
        engine.add_request([4, 5], greedy(2))
        engine.step()
    assert (len(copy), len(copy.requests), len(copy.events)) == (4, 1, len(events))


def test_an_event_of_the_trace_never_collects_what_happens_next() -> None:
    engine = make_engine()
    with record(engine) as trace:
        assert [event.mode for event in trace.events] == ["START"]
        serve(engine, [1, 2, 3], max_new_tokens=3)
    assert [event.mode for event in trace.events] == ["START", "BETWEEN", "EXTEND", "DECODE", "DECODE"]
