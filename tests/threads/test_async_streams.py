"""Streams of an AsyncEngine: what has arrived, readers that fall behind, and requests that nobody wants any more."""

import asyncio
import gc

import pytest
import torch

from nanoinfer import AsyncEngine
from nanoinfer.requests.request import Request
from tests.helpers.async_engines import arrival, assert_all_free, following, idle, with_barrier, with_front
from tests.helpers.engines import V, greedy
from tests.helpers.waiting import run, until_async


async def test_a_read_joins_what_has_arrived_per_completion() -> None:
    async with with_front(False) as (engine, barrier):
        (stream,) = await engine.add_all([Request([5], greedy(4, logprobs=0, prompt_logprobs=False))])
        barrier.let_one_through()
        (first,) = await stream.read()
        assert (first.token_ids, first.finish_reason, len(first.logprobs or [])) == ([6], None, 1)
        assert stream.final is None
        barrier.open()
        await idle(engine)
        await asyncio.sleep(0)
        (rest,) = await stream.read()
        assert (rest.token_ids, rest.finish_reason, len(rest.logprobs or [])) == ([7, 8, 9], "length", 3)
        assert await stream.read() == []
        assert await stream.read() == []
        assert stream.final is not None
        assert stream.final.token_ids == [6, 7, 8, 9]


@pytest.mark.parametrize("how", ["read", "one by one"])
async def test_a_request_whose_reader_is_behind_is_paused_until_half_is_read(how: str) -> None:
    async with with_front(False) as (engine, barrier):
        (stream,) = await engine.add_all([Request([5], greedy(40))], max_unread=6)
        for _ in range(6):
            barrier.let_one_through()
        await until_async(lambda: stream._delivery.is_held, "a reader that is behind")
        barrier.open()
        while not (await engine.stats()).paused:
            pass
        stats = await engine.stats()
        assert (stats.running, stats.request_slots) == (0, 0)
        assert barrier.passes in (6, 7), "the seventh may have begun before the pause"
        other = await engine.generate([50], greedy(5))
        assert other.token_ids == following(50, 5), "others are not held up"
        tokens: list[int] = []
        if how == "read":
            while pieces := await stream.read():
                tokens += pieces[0].token_ids
        else:
            async for piece in stream:
                tokens += piece.token_ids
        assert tokens == following(5, 40)


async def test_a_request_that_is_aborted_while_its_reader_is_behind_ends() -> None:
    async with with_front(False) as (engine, barrier):
        (stream,) = await engine.add_all([Request([5], greedy(40))], max_unread=2)
        for _ in range(2):
            barrier.let_one_through()
        await until_async(lambda: stream._delivery.is_held, "a reader that is behind")
        barrier.open()
        while not (await engine.stats()).paused:
            pass
        stream.close()
        last = [piece async for piece in stream][-1]
        assert last.finish_reason == "abort"
        await engine.check_integrity()


@pytest.mark.parametrize("wrong", [0, -1, True])
async def test_max_unread_is_checked(wrong: int) -> None:
    async with with_front() as (engine, _):
        with pytest.raises(ValueError, match="max_unread"):
            await engine.add_all([Request([5], greedy(1))], max_unread=wrong)


async def test_abort_ends_the_stream_and_says_so_and_the_others_notice_nothing() -> None:
    async with with_front(open_at_once=False) as (front, barrier):
        stream = await front.add([1], greedy(20))
        barrier.let_one_through()
        assert (await anext(stream)).token_ids == [2]
        other = asyncio.create_task(front.generate([50], greedy(4)))
        ending = asyncio.create_task(front.abort(stream.request_id))
        await asyncio.sleep(0)  # it is posted
        barrier.open()
        await ending
        await front.abort(stream.request_id)
        await front.abort(10**9)
        pieces = [piece async for piece in stream]
        assert pieces[-1].finish_reason == "abort"
        output = await stream.output()
        assert output.token_ids == following(1, len(output.token_ids))
        assert (await other).token_ids == following(50, 4)


@pytest.mark.parametrize("how", ["close", "aclose", "cancel", "collect the stream", "collect the generator"])
async def test_a_request_whose_reader_goes_away_is_aborted(how: str) -> None:
    async with with_front(open_at_once=False) as (front, barrier):
        barrier.let_one_through()
        if how == "close":
            stream = await front.add([1], greedy(40))
            await anext(stream)
            stream.close()
        elif how == "aclose":
            generator = front.stream([1], greedy(40))
            await anext(generator)
            await generator.aclose()  # type: ignore[attr-defined]
        elif how == "cancel":
            task = asyncio.create_task(front.generate([1], greedy(40)))
            await until_async(lambda: barrier.passes, "the first pass")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        elif how == "collect the stream":
            stream = await front.add([1], greedy(40))
            await anext(stream)
            del stream
        else:
            generator = front.stream([1], greedy(40))
            await anext(generator)
            del generator
        for _ in range(3):
            gc.collect(1)  # what is new is in the young generations
            await asyncio.sleep(0)
        barrier.open()
        await idle(front)
        stats = await front.stats()
        assert (stats.aborted, stats.finished) == (1, 0)
        assert barrier.passes < 40
        assert (await front.generate([60], greedy(2))).token_ids == [61, 62]


async def test_a_task_cancelled_before_its_request_was_queued_leaves_nothing() -> None:
    async with with_front(open_at_once=False) as (front, barrier):
        busy = await front.add([1], greedy(2))
        await arrival(barrier, 1)  # the thread is in a pass now, and takes no commands
        task = asyncio.create_task(front.generate([60], greedy(40)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        barrier.open()
        assert (await busy.output()).token_ids == [2, 3]
        await idle(front)
        assert (await front.stats()).prompt_tokens == 1


def test_readers_whose_event_loop_was_closed_are_forgotten() -> None:
    engine, barrier = with_barrier(open_at_once=False)
    front = AsyncEngine(engine)
    kept = []

    async def leave() -> None:
        kept.append(await front.add([1], greedy(40)))

    asyncio.run(leave())
    barrier.open()

    async def test() -> None:
        await idle(front)
        assert (await front.stats()).aborted == 1
        assert (await front.generate([60], greedy(2))).token_ids == [61, 62]
        await front.shutdown()

    run(test)
    assert_all_free(engine)


# --- many at random; at any moment, and beside threads: the soak's kind `clients` -------------------------------------

COROUTINES = 64


async def one(front: AsyncEngine, prompt: list[int], count: int, how: int, after: int) -> str:
    """A request of `count` tokens. `how`: 0 not streamed, 1 closed, 2 aborted after `after` tokens, 3 read to its end."""
    wanted = following(prompt[-1], count)
    if how == 0:
        assert (await front.generate(prompt, greedy(count))).token_ids == wanted
        return "finished"
    tokens: list[int] = []
    stream = await front.add(prompt, greedy(count))
    async for piece in stream:
        tokens += piece.token_ids
        assert tokens == wanted[: len(tokens)]
        if how == 1 and len(tokens) >= after:
            stream.close()
            return "closed"
        if how == 2 and len(tokens) >= after:
            await front.abort(stream.request_id)
    assert how == 2 or tokens == wanted
    return str((await stream.output()).finish_reason)


@pytest.mark.parametrize("seed", range(2))
async def test_64_coroutines_of_which_some_are_cancelled_between_two_passes(seed: int) -> None:
    """Tiny pools, so that requests are evicted and retracted, too. Who is not cancelled gets exactly the right tokens."""
    generator = torch.Generator().manual_seed(seed)

    def integer(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    options = {"slots": 96, "rows": 8, "chunked_prefill_size": 16, "page_size": (1, 4)[seed % 2]}
    async with with_front(open_at_once=False, schedule_conservativeness=0.001, **options) as (front, barrier):
        tasks = []
        for _ in range(COROUTINES):
            prompt = [*range(integer(0, 30)), integer(0, V)]
            job = one(front, prompt, integer(1, 30), how=integer(0, 4), after=integer(1, 10))
            tasks.append(asyncio.create_task(job))
            if integer(0, 4) == 0:
                await asyncio.sleep(0)
        await arrival(barrier, 1)
        cancelled = set()
        for _ in range(16):
            i, seen = integer(0, COROUTINES), barrier.arrivals
            if tasks[i].cancel():
                cancelled.add(i)
            looking = asyncio.create_task(front.check_integrity())
            await asyncio.sleep(0)  # both are posted
            barrier.let_one_through()
            await arrival(barrier, seen + 1)
            await looking
        barrier.open()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for i, result in enumerate(results):
            if isinstance(result, BaseException):
                assert isinstance(result, asyncio.CancelledError), result
                assert i in cancelled
        assert sum(isinstance(result, str) for result in results) >= COROUTINES - 16
        await idle(front)
        stats = await front.stats()
        assert stats.failed == 0
        assert stats.finished + stats.aborted <= COROUTINES
