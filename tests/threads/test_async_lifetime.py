"""An AsyncEngine from its start to its end: what it takes over, what happens when something raises, and how it stops."""

import asyncio
from queue import SimpleQueue
from typing import Any

import pytest

from nanoinfer import LLM, AsyncEngine, AsyncStream, EngineClosedError, StepFailedError
from tests.helpers.async_engines import (
    PassBarrier,
    arrival,
    assert_all_free,
    following,
    llm_around,
    with_barrier,
    with_front,
)
from tests.helpers.engines import greedy
from tests.helpers.waiting import Worker, someone_waits, until_async


async def test_shutdown_ends_streams_and_may_be_called_again() -> None:
    engine, barrier = with_barrier(open_at_once=False)
    front = AsyncEngine(engine)
    stream = await front.add([1], greedy(40))
    barrier.let_one_through()
    await anext(stream)
    await arrival(barrier, 2)  # else all three could come between two passes, and none would wait
    closing = [asyncio.create_task(front.shutdown()) for _ in range(3)]
    await until_async(lambda: someone_waits(engine), "one of them")
    barrier.open()
    await asyncio.gather(*closing)
    await front.shutdown()
    pieces = [piece async for piece in stream]
    assert pieces[-1].finish_reason == "abort"
    for call in (front.generate([1], greedy()), front.stats(), front.abort(0)):
        with pytest.raises(EngineClosedError):
            await call
    stream.close()
    assert_all_free(engine)


async def test_leaving_the_context_by_an_error_stops_the_thread() -> None:
    engine, _ = with_barrier()

    async def fail() -> None:
        async with AsyncEngine(engine) as front:
            await front.add([1], greedy(40))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert_all_free(engine)


async def added(barrier: PassBarrier, front: AsyncEngine, token: int) -> AsyncStream:
    """A request that is added after the pass that waits at the barrier; the next one waits there, too."""
    await arrival(barrier, 1)
    adding = asyncio.create_task(front.add([token], greedy(20)))
    await asyncio.sleep(0)  # it is posted
    barrier.let_one_through()
    await arrival(barrier, 2)
    return await adding


async def test_several_clients_use_one_engine_at_once_with_the_tokens_that_each_gives_alone() -> None:
    engine, barrier = with_barrier(open_at_once=False)
    llm = llm_around(engine)
    async with AsyncEngine(llm) as first, AsyncEngine(llm) as second:
        streams = [await first.add([1], greedy(20)), await added(barrier, second, 30)]
        call = Worker(llm.generate, [[50], [70]], greedy(20))
        await until_async(lambda: someone_waits(engine), "the call")
        barrier.open()
        assert [(await stream.output()).token_ids for stream in streams] == [following(1, 20), following(30, 20)]
        assert [output.token_ids for output in await asyncio.to_thread(call.result)] == [
            following(50, 20),
            following(70, 20),
        ]
    assert barrier.passes <= 24, "all in the same passes"
    assert_all_free(engine)


async def test_an_async_engine_closes_itself_and_leaves_the_llm_and_other_clients_open() -> None:
    engine, barrier = with_barrier(open_at_once=False)
    llm = llm_around(engine)
    first, second = AsyncEngine(llm), AsyncEngine(llm)
    mine, other = await first.add([1], greedy(20)), await added(barrier, second, 30)
    closing = asyncio.create_task(first.shutdown())
    await until_async(lambda: someone_waits(engine), "who closes")
    barrier.open()
    await closing
    assert (await mine.output()).finish_reason == "abort"
    assert (first.is_closed, second.is_closed) == (True, False)
    with pytest.raises(EngineClosedError):
        await first.generate([1], greedy())
    assert (await other.output()).token_ids == following(30, 20)
    await second.shutdown()
    assert (await asyncio.to_thread(llm.generate, [5], greedy(2)))[0].token_ids == [6, 7]
    assert_all_free(engine)


async def test_an_async_engine_that_has_loaded_its_model_shuts_it_down() -> None:
    async with AsyncEngine("story", max_total_tokens=64, max_context_len=32) as front:
        assert len((await front.generate([1], greedy(3))).token_ids) == 3
    assert isinstance(front.llm, LLM)
    with pytest.raises(EngineClosedError):
        front.llm.generate([1], greedy(3))


async def test_after_the_llm_was_shut_down_its_async_engines_refuse() -> None:
    engine, barrier = with_barrier(open_at_once=False)
    llm = llm_around(engine)
    async with AsyncEngine(llm) as front:
        stream = await front.add([5], greedy(20))
        await arrival(barrier, 1)
        ending = asyncio.create_task(asyncio.to_thread(llm.shutdown))
        await until_async(lambda: someone_waits(engine), "the shutdown")
        barrier.open()
        await ending
        assert (await stream.output()).finish_reason == "abort"
        assert front.is_closed
        with pytest.raises(EngineClosedError):
            await front.generate([1], greedy(3))
        with pytest.raises(EngineClosedError):
            await front.stats()


async def read_all(stream: AsyncStream) -> None:
    while await stream.read():
        pass


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
async def test_an_exception_in_a_step_fails_its_requests_and_the_engine_goes_on(kind: type[BaseException]) -> None:
    error = kind("out of memory")
    async with with_front(open_at_once=False, rows=2) as (front, barrier):
        streams = [await front.add([1], greedy(20))]
        await arrival(barrier, 1)
        later = [asyncio.create_task(front.add([base], greedy(20))) for base in (40, 80)]
        await asyncio.sleep(0)  # they are posted; the second pass admits one of them
        barrier.error, barrier.error_at = error, 3
        barrier.open()
        streams += [await task for task in later]
        await anext(streams[0])
        with pytest.raises(StepFailedError, match=str(error)) as raised:
            await streams[0].output()
        assert raised.value.__cause__ is error
        with pytest.raises(StepFailedError):
            await anext(streams[0])
        with pytest.raises(StepFailedError):
            await read_all(streams[1])
        assert (await streams[2].output()).token_ids == following(80, 20)
        stats = await front.stats()
        assert (stats.failed, stats.finished) == (2, 1)


async def test_a_thread_that_dies_leaves_nobody_waiting() -> None:
    """That takes a bug in the engine; here `has_work` raises."""
    engine, barrier = with_barrier(open_at_once=False)
    front = AsyncEngine(engine)
    stream = await front.add([1], greedy(20))
    await arrival(barrier, 1)

    def broken(*args: object) -> bool:
        raise ZeroDivisionError("a bug")

    engine.loop.has_work = broken  # type: ignore[method-assign]
    other = asyncio.create_task(front.generate([50], greedy(20)))
    await asyncio.sleep(0)  # it is posted
    barrier.open()
    with pytest.raises((StepFailedError, EngineClosedError), match="a bug") as raised:
        await stream.output()
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    with pytest.raises((StepFailedError, EngineClosedError)):
        await anext(stream)
    with pytest.raises((StepFailedError, EngineClosedError)):
        await other
    with pytest.raises(EngineClosedError):
        await front.stats()
    await front.shutdown()
    assert_all_free(engine)


async def test_an_idle_engine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    class Commands(SimpleQueue[Any]):
        """`is_waiting`: somebody sleeps until a command comes, and for nothing else."""

        is_waiting = False

        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            self.is_waiting = block and timeout is None
            try:
                return super().get(block, timeout)
            finally:
                self.is_waiting = False

    commands = Commands()
    monkeypatch.setattr("nanoinfer.engine.engine_loop.SimpleQueue", lambda: commands)

    async with with_front() as (front, _):
        await front.generate([1], greedy(2))
        await until_async(lambda: commands.is_waiting, "a wait without a limit")
