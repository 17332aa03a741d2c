"""The live page's feed: it costs little, nothing while nobody watches, and slow readers lose frames, never memory."""

import asyncio
import json
import logging
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from nanoinfer import AsyncEngine
from nanoinfer.server.live.feed import EventStream, FeedEndedError
from nanoinfer.server.live.limits import Limits
from nanoinfer.server.live.request_view import StepNotes
from nanoinfer.server.live.texts import UNREADABLE
from nanoinfer.trace.recorder import recorder_of
from tests.helpers.engines import Clock, LetterTokenizer, greedy, make_engine
from tests.helpers.fakes import counted_calls
from tests.helpers.live import Client, SteppedFeed, merged, next_frame, read_frame, with_feed
from tests.helpers.waiting import HANG_S, until_async

# --- while nobody watches ---------------------------------------------------------------------------------------------


def test_without_watchers_nothing_is_looked_at_or_noted() -> None:
    async def test(feed: SteppedFeed, front: AsyncEngine) -> None:
        await front.generate("abc", greedy(3))
        assert (recorder_of(front.llm), feed.pauses, feed._task) == (None, [], None)
        watcher = feed.join()
        await feed.started()
        assert recorder_of(front.llm) is not None
        feed.leave(watcher)
        await feed.look()
        while feed._task is not None:
            await asyncio.sleep(0)
        assert recorder_of(front.llm) is None
        assert not feed.view.requests.seen
        await front.generate("abc", greedy(3))
        assert feed.view.notes.take() == ({}, {})

    with_feed(test)()


def test_a_watcher_after_a_break_gets_a_whole_new_state() -> None:
    async def test(feed: SteppedFeed, front: AsyncEngine) -> None:
        first = feed.join()
        assert (await next_frame(first))["number"] == 0
        feed.leave(first)
        while feed._task is not None:
            await feed.look()
        await front.generate("abc", greedy(3))
        again = await next_frame(feed.join())
        assert (again["number"], again["key"]) == (1, True)
        assert again["state"]["counts"]["finished"] == 1

    with_feed(test)()


# --- frames -----------------------------------------------------------------------------------------------------------


def test_frames_add_up_to_what_a_newcomer_gets() -> None:
    async def test(feed: SteppedFeed, front: AsyncEngine) -> None:
        watcher = feed.join()
        frame = await next_frame(watcher)
        assert frame["key"]
        assert frame["about"]["about"] == 1
        state, frame_about = frame["state"], frame["about"]
        for prompt in ("abc", "abcdef", "xyz"):
            await front.generate(prompt, greedy(3))
            await feed.look()
            frame = await next_frame(watcher)
            assert set(frame) == {"number", "state"}
            state = merged(state, frame["state"])
        newcomer = await next_frame(feed.join())
        assert newcomer == {"number": 3, "key": True, "about": frame_about, "state": state}

    with_feed(test)()


def test_who_misses_frames_gets_the_whole_state_and_the_others_do_not() -> None:
    async def test(feed: SteppedFeed, front: AsyncEngine) -> None:
        slow, quick = feed.join(), feed.join()
        await next_frame(slow)
        await next_frame(quick)
        for _ in range(3):
            await front.generate("abc", greedy(3))
            await feed.look()
            assert "key" not in await next_frame(quick)
        frame = await next_frame(slow)
        assert (frame["number"], frame["key"]) == (3, True)
        await front.generate("abc", greedy(3))
        await feed.look()
        assert "key" not in await next_frame(slow), "it follows again"

    with_feed(test)()


def test_looks_are_rare_and_take_a_small_share_of_the_engines_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("nanoinfer.server.live.view.time", SimpleNamespace(thread_time=clock))
    monkeypatch.setattr("nanoinfer.server.live.feed.time", SimpleNamespace(perf_counter=clock, thread_time=clock))

    async def test(feed: SteppedFeed, front: AsyncEngine) -> None:
        look, publish = feed.view._map, feed._publish

        def slow_map() -> Any:
            clock.now += 0.04
            return look()

        def slow_publish(state: Any) -> None:
            clock.now += 0.01
            publish(state)

        feed.join()
        await feed.started()
        feed.view._map, feed._publish = slow_map, slow_publish  # type: ignore[method-assign]
        await feed.look()
        assert feed.pauses == [0.1, pytest.approx(5)]  # 10 per second; 0.04 and 0.01 s are a hundredth of 5 s

    with_feed(test)()


# --- ends -------------------------------------------------------------------------------------------------------------


def test_watchers_are_sent_away_when_the_server_ends() -> None:
    async def test(feed: SteppedFeed, front: AsyncEngine) -> None:
        watcher = feed.join()
        await next_frame(watcher)
        feed.is_over = True
        feed._go.release()
        with pytest.raises(FeedEndedError):
            await watcher.next(HANG_S)
        with pytest.raises(FeedEndedError):
            feed.join()
        assert recorder_of(front.llm) is None, "the engine may outlive its server"

    with_feed(test)()


def test_a_failure_ends_the_feed_but_no_request_and_the_next_watcher_starts_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(feed: SteppedFeed, front: AsyncEngine) -> None:
        watcher = feed.join()
        await next_frame(watcher)
        real, feed.view._map = feed.view._map, lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
        with caplog.at_level(logging.ERROR):
            feed._go.release()
            with pytest.raises(FeedEndedError):
                await watcher.next(HANG_S)
        assert "the live page's feed failed" in caplog.text
        assert (await front.generate("abc", greedy(2))).text == "de"
        feed.view._map = real  # type: ignore[method-assign]
        assert (await next_frame(feed.join()))["key"]

    with_feed(test)()


# --- texts ------------------------------------------------------------------------------------------------------------


def test_where_prompts_are_shown_frames_have_the_beginning_and_the_end_of_each_text() -> None:
    async def test(feed: SteppedFeed, front: AsyncEngine) -> None:
        watcher = feed.join()
        await next_frame(watcher)
        await front.generate("abc" + "-" * 40 + "xyz", greedy(2))
        await feed.look()
        state = (await next_frame(watcher))["state"]
        (request,) = state["requests"].values()
        assert (request["prompt_text"], request["output_text"]) == ("abc----- … -----xyz", "{|")
        assert [fields["text"] for fields in state["nodes"].values() if "text" in fields] == ["abc----- … ----xyz{"]

    with_feed(test, Limits(characters=16, node_tokens=16, prompt_tokens=16), show_prompts=True)()


def test_a_tokenizer_that_fails_costs_a_text_and_nothing_else() -> None:
    class Broken(LetterTokenizer):
        def decode(self, *args: Any, **kwargs: Any) -> str:
            raise RuntimeError("broken")

    async def test(feed: SteppedFeed, front: AsyncEngine) -> None:
        await front.generate("abc", greedy(2))
        frame = await next_frame(feed.join())
        assert frame["state"]["nodes"]["1"]["text"] == UNREADABLE

    with_feed(test, show_prompts=True, tokenizer=Broken())()


# --- over HTTP --------------------------------------------------------------------------------------------------------


def test_a_client_that_reads_nothing_for_too_long_is_dropped() -> None:
    async def test(feed: SteppedFeed, front: AsyncEngine) -> None:
        client = Client()
        client.takes.release()  # it takes the headers, and then nothing
        await EventStream(feed, feed.limits)({}, client.receive, client.send)  # type: ignore[arg-type]
        assert [message["type"] for message in client.messages] == ["http.response.start"]
        assert not feed._watchers

    with_feed(test, Limits(send_seconds=0.01))()


def test_one_watcher_too_many_is_told_so() -> None:
    async def test(feed: SteppedFeed, front: AsyncEngine) -> None:
        watcher, client = feed.join(), Client()
        client.takes = asyncio.Semaphore(9)
        await EventStream(feed, feed.limits)({"type": "http"}, client.receive, client.send)  # type: ignore[arg-type]
        start, body = client.messages
        assert start["status"] == 503
        assert (b"retry-after", b"1") in start["headers"]
        assert json.loads(body["body"])["error"]["code"] == "too_many_watchers"
        feed.leave(watcher)
        feed.join()

    with_feed(test, Limits(watchers=1))()


# --- what it costs, and a classroom ------------------------------------------------------------------------------------


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
        await feed.look()
        await asyncio.gather(*(watcher.next(HANG_S) for watcher in watchers))
        assert (len(encoded), len(looks)) == (3, 2)

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


ROUNDS = 12


def drawn(bodies: list[bytes]) -> dict[str, Any]:
    """The state that a page shows after these events; each must follow what the page has."""
    state: dict[str, Any] = {}
    number = -1
    for frame in map(read_frame, bodies):
        assert frame["number"] > number
        assert frame.get("key") or frame["number"] == number + 1
        state, number = frame["state"] if frame.get("key") else merged(state, frame["state"]), frame["number"]
    return state


def test_thirty_clients_of_which_ten_are_slow_end_with_the_same_picture() -> None:
    async def test(feed: SteppedFeed, front: AsyncEngine) -> None:
        quick, slow = [Client() for _ in range(20)], [Client() for _ in range(10)]
        streams = [client.watch(feed, feed.limits) for client in (*quick, *slow)]
        for client in (*quick, *slow):
            client.takes.release()  # the headers
        await feed.started()
        for number in range(ROUNDS):
            for client in quick:
                client.takes.release()
            if number % 5 == 0:
                for client in slow:
                    client.takes.release()
            await until_async(lambda number=number: all(len(client.bodies) == number + 1 for client in quick))
            if number < ROUNDS - 1:
                await front.generate("abc" + "xyz"[: number % 4], greedy(1 + number % 3))
                await feed.look()
        for client in slow:
            for _ in range(ROUNDS):
                client.takes.release()
        last = feed.number
        await until_async(
            lambda: all(read_frame(client.bodies[-1])["number"] == last for client in slow if client.bodies)
        )
        newcomer = (await next_frame(feed.join()))["state"]
        assert newcomer["counts"]["finished"] == front.llm.stats().finished == ROUNDS - 1
        assert all(drawn(client.bodies) == newcomer for client in (*quick, *slow))
        assert all(len(client.bodies) < ROUNDS / 2 for client in slow), "what they missed was never kept for them"
        assert Counter(len({id(client.bodies[i]) for client in quick}) for i in range(1, ROUNDS)) == {1: ROUNDS - 1}
        for client in (*quick, *slow):
            client.gone.set()
        await asyncio.gather(*streams)
        assert len(feed._watchers) == 1

    with_feed(test)()
