"""An AsyncEngine from its start to its end: what it takes over, when its thread sleeps, and how it stops."""

import asyncio

import pytest

from nanoinfer import LLM, AsyncEngine, EngineClosedError
from tests.helpers.async_engines import Commands, arrival, assert_all_free, gated
from tests.helpers.engines import Clock, greedy, make_engine
from tests.helpers.waiting import run, until_async


def test_shutdown_ends_streams_and_may_be_called_again() -> None:
    async def test() -> None:
        engine, gate = gated(open_at_once=False)
        front = AsyncEngine(engine)
        stream = await front.add([1], greedy(40))
        gate.let_one_through()
        await anext(stream)
        closing = [asyncio.create_task(front.shutdown()) for _ in range(3)]
        gate.open()
        await asyncio.gather(*closing)
        await front.shutdown()
        pieces = [piece async for piece in stream]
        assert pieces[-1].finish_reason == "abort"
        for call in (front.generate([1], greedy()), front.stats(), front.abort(0)):
            with pytest.raises(EngineClosedError):
                await call
        stream.close()
        assert_all_free(engine)

    run(test)


def test_leaving_the_context_by_an_error_stops_the_thread() -> None:
    async def test() -> None:
        engine, _ = gated()

        async def fail() -> None:
            async with AsyncEngine(engine) as front:
                await front.add([1], greedy(40))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert_all_free(engine)

    run(test)


def test_an_engine_with_requests_of_its_own_is_not_taken_over() -> None:
    engine = make_engine()
    engine.add_request([1], greedy())
    with pytest.raises(ValueError, match="unfinished requests"):
        AsyncEngine(engine)


def test_an_engine_serves_one_front_alone() -> None:
    async def test() -> None:
        llm = LLM("story", max_total_tokens=64, max_context_len=32)
        async with AsyncEngine(llm) as front:
            with pytest.raises(ValueError, match="an AsyncEngine is already using its engine"):
                AsyncEngine(llm)
            waiting = await front.add([1], greedy(8))
            for call in (
                lambda: llm.generate([1], greedy()),
                lambda: next(llm.stream([1], greedy())),
                lambda: llm.engine.add_request([1], greedy()),
                llm.engine.step,
            ):
                with pytest.raises(RuntimeError, match="an AsyncEngine is using this engine: call its methods"):
                    call()
            assert len((await waiting.output()).token_ids) == 8
            llm.engine.check_integrity()  # to look is possible from any thread
        with pytest.raises(EngineClosedError):
            llm.generate([1], greedy())

    run(test)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    """The commands of the thread that a test starts."""
    commands = Commands()
    monkeypatch.setattr("nanoinfer.frontends.engine_thread.SimpleQueue", lambda: commands)
    return commands


def test_an_idle_engine_sleeps(commands: Commands) -> None:
    async def test() -> None:
        engine, _ = gated()
        async with AsyncEngine(engine) as front:
            await until_async(lambda: commands.is_waiting, "a wait before the first request")
            await front.generate([1], greedy(2))
            await until_async(lambda: commands.is_waiting, "a wait without a limit")
            await front.stats()
            await until_async(lambda: commands.is_waiting, "a wait without a limit")

    run(test)


def test_it_sleeps_until_the_deadline_of_a_paused_request(commands: Commands) -> None:
    async def test() -> None:
        commands.clock = Clock()
        engine, gate = gated(open_at_once=False, clock=commands.clock)
        async with AsyncEngine(engine) as front:
            stream = await front.add([5], greedy(60), timeout_s=10.0)
            await arrival(gate, 1)
            pausing = asyncio.create_task(front.pause(stream.request_id))
            await asyncio.sleep(0)  # it is posted now, and waits for the pass that is being made
            gate.let_one_through()
            await pausing
            output = await stream.output()
            assert (output.finish_reason, output.token_ids) == ("timeout", [6])
            assert commands.limits == [10.0]
            assert (await front.stats()).paused == 0

    run(test)
