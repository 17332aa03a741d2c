"""A classroom watches: thirty clients of the event stream, of which a third are slow."""

import asyncio
from collections import Counter
from typing import Any

from nanoinfer import AsyncEngine
from nanoinfer.server.live.limits import Limits
from tests.helpers.engines import greedy
from tests.helpers.live import merged, read_frame
from tests.helpers.live_feed import Client, SteppedFeed, next_frame, with_feed
from tests.helpers.waiting import HANG_S, until_async

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


def test_a_client_that_was_dropped_is_told_so_when_it_comes_back_and_others_are_not() -> None:
    async def test(feed: SteppedFeed, front: AsyncEngine) -> None:
        def name_of(client: Client) -> str:
            return dict(client.messages[0]["headers"])[b"x-watcher"].decode()

        frozen, away = Client(), Client()
        frozen.takes.release()  # it takes the headers, and then nothing
        await frozen.watch(feed, feed.limits)
        away.takes.release()
        stream = away.watch(feed, Limits(send_seconds=HANG_S))
        await until_async(lambda: bool(away.messages))
        away.gone.set()
        await stream
        assert name_of(frozen) != name_of(away)
        for client, told in ((frozen, True), (away, False)):
            again = Client()
            again.takes = asyncio.Semaphore(9)
            stream = again.watch(feed, Limits(send_seconds=HANG_S), earlier=name_of(client))
            await until_async(lambda again=again: any(b"event: frame" in body for body in again.bodies))
            assert (again.bodies[0] == f'event: dropped\ndata: {{"after_seconds":{HANG_S:g}}}\n\n'.encode()) is told
            again.gone.set()
            await stream

    with_feed(test, Limits(send_seconds=0.01))()
