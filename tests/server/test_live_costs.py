"""What watching costs an engine, counted: frames at a rate, each made once, and notes that most passes do not change."""

import asyncio
from types import SimpleNamespace

import pytest

from nanoinfer import AsyncEngine
from nanoinfer.server.live.limits import Limits
from nanoinfer.server.live.step_notes import StepNotes
from nanoinfer.trace.packed import PackedDecode
from nanoinfer.trace.recorder import recorder_of
from tests.helpers.engines import Clock, greedy, make_engine
from tests.helpers.fakes import counted_calls
from tests.helpers.live_feed import SteppedFeed, next_frame, with_feed
from tests.helpers.waiting import HANG_S


def test_frames_are_encoded_when_one_is_due_and_once_for_all_watchers() -> None:
    async def test(feed: SteppedFeed, front: AsyncEngine) -> None:
        encoded, looks = [], []
        encode, look = feed._encode, feed.view.look
        feed._encode = lambda fields: (encoded.append(1), encode(fields))[1]  # type: ignore[method-assign]
        feed.view.look = lambda engine: (looks.append(1), look(engine))[1]  # type: ignore[method-assign]
        watchers = [feed.join() for _ in range(30)]
        await asyncio.gather(*(watcher.next(HANG_S) for watcher in watchers))
        assert (len(encoded), len(looks)) == (2, 1), "the changes, and the whole state"
        await front.generate("abc", greedy(20))
        assert (len(encoded), len(looks)) == (2, 1), "twenty passes, and none of them is a frame"
        recorder = recorder_of(front.llm)
        assert recorder is not None
        assert sum(isinstance(event, PackedDecode) for event in recorder.trace._events) == 19
        await feed.look()
        await asyncio.gather(*(watcher.next(HANG_S) for watcher in watchers))
        assert (len(encoded), len(looks)) == (3, 2)

    with_feed(test)()


@pytest.mark.parametrize(("watchers", "seconds"), [(1, 0.1), (10, 0.1), (30, 0.3), (64, 0.64)])
def test_the_more_watch_the_fewer_frames_there_are(
    watchers: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("nanoinfer.server.live.view.time", SimpleNamespace(thread_time=clock))
    monkeypatch.setattr("nanoinfer.server.live.feed.time", SimpleNamespace(perf_counter=clock, thread_time=clock))

    async def test(feed: SteppedFeed, front: AsyncEngine) -> None:
        for _ in range(watchers):
            feed.join()
        await feed.started()
        assert feed.pauses == [pytest.approx(seconds)]

    with_feed(test, Limits(frames_per_second=10, sends_per_second=100))()


def test_a_tape_that_is_copied_stays_packed() -> None:
    async def test(feed: SteppedFeed, front: AsyncEngine) -> None:
        await next_frame(feed.join())
        await front.generate("abc", greedy(9))
        pieces = await front.visit(lambda engine: feed.tape.pieces())
        assert pieces is not None
        assert sum(isinstance(event, PackedDecode) for event in pieces[0]._events) == 8, "others unpack it, elsewhere"

    with_feed(test)()


def test_a_pass_like_the_last_one_is_noted_without_a_look_at_its_requests() -> None:
    def calls(streams: int) -> int:
        engine, notes = make_engine(rows=streams, slots=512), StepNotes()
        for i in range(streams):
            engine.add_request([i + 1, 2], greedy(9))
        for _ in range(3):
            engine.step()
            notes.after_pass(engine)
        with counted_calls() as counted:
            notes.after_pass(engine)
        return sum(counted.values())

    assert calls(16) == calls(1)


def test_the_first_pass_after_a_frame_is_noted_though_it_is_like_the_last_one() -> None:
    engine, notes = make_engine(), StepNotes()
    engine.add_request([1, 2], greedy(9))
    for _ in range(3):
        engine.step()
        notes.after_pass(engine)
    passes, kinds = notes.take()
    assert (passes, [*kinds.values()]) == ({"EXTEND": 1, "DECODE": 2}, ["EXTEND"])
    engine.step()
    notes.after_pass(engine)
    passes, kinds = notes.take()
    assert (passes, [*kinds.values()]) == ({"DECODE": 1}, ["DECODE"])
