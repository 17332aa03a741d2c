"""Requests of an AsyncEngine that nobody wants any more: aborted, cancelled, abandoned. Nothing of them is left."""

import asyncio
import gc

import pytest

from nanoinfer import AsyncEngine
from tests.helpers.async_engines import arrival, assert_all_free, following, gated, idle
from tests.helpers.engines import greedy
from tests.helpers.waiting import run, until_async


def test_abort_ends_the_stream_and_says_so_and_the_others_notice_nothing() -> None:
    async def test() -> None:
        engine, gate = gated(open_at_once=False)
        async with AsyncEngine(engine) as front:
            stream = await front.add([1], greedy(20))
            gate.let_one_through()
            assert (await anext(stream)).token_ids == [2]
            other = asyncio.create_task(front.generate([50], greedy(4)))
            ending = asyncio.create_task(front.abort(stream.request_id))
            await asyncio.sleep(0)  # it is posted
            gate.open()
            await ending
            await front.abort(stream.request_id)
            await front.abort(10**9)
            pieces = [piece async for piece in stream]
            assert pieces[-1].finish_reason == "abort"
            output = await stream.output()
            assert output.token_ids == following(1, len(output.token_ids))
            assert (await other).token_ids == following(50, 4)
        assert_all_free(engine)

    run(test)


@pytest.mark.parametrize("how", ["close", "break", "aclose", "cancel", "collect the stream", "collect the generator"])
def test_a_request_whose_reader_goes_away_is_aborted(how: str) -> None:
    async def test() -> None:
        engine, gate = gated(open_at_once=False)
        async with AsyncEngine(engine) as front:
            gate.let_one_through()
            if how == "close":
                stream = await front.add([1], greedy(40))
                await anext(stream)
                stream.close()
            elif how == "break":
                async for _ in front.stream([1], greedy(40)):
                    break
            elif how == "aclose":
                generator = front.stream([1], greedy(40))
                await anext(generator)
                await generator.aclose()  # type: ignore[attr-defined]
            elif how == "cancel":
                task = asyncio.create_task(front.generate([1], greedy(40)))
                await until_async(lambda: gate.passes, "the first pass")
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
            gate.open()
            await idle(front)
            stats = await front.stats()
            assert (stats.aborted, stats.finished) == (1, 0)
            assert gate.passes < 40
            assert (await front.generate([60], greedy(2))).token_ids == [61, 62]
        assert_all_free(engine)

    run(test)


def test_a_task_cancelled_before_its_request_was_queued_leaves_nothing() -> None:
    async def test() -> None:
        engine, gate = gated(open_at_once=False)
        async with AsyncEngine(engine) as front:
            busy = await front.add([1], greedy(2))
            await arrival(gate, 1)  # the thread is in a pass now, and takes no commands
            task = asyncio.create_task(front.generate([60], greedy(40)))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            gate.open()
            assert (await busy.output()).token_ids == [2, 3]
            await idle(front)
            assert (await front.stats()).prompt_tokens == 1
        assert_all_free(engine)

    run(test)


def test_readers_whose_event_loop_was_closed_are_forgotten() -> None:
    engine, gate = gated(open_at_once=False)
    front = AsyncEngine(engine)
    kept = []

    async def leave() -> None:
        kept.append(await front.add([1], greedy(40)))

    asyncio.run(leave())
    gate.open()

    async def test() -> None:
        await idle(front)
        assert (await front.stats()).aborted == 1
        assert (await front.generate([60], greedy(2))).token_ids == [61, 62]
        await front.shutdown()

    run(test)
    assert_all_free(engine)
