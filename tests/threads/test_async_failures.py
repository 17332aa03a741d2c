"""AsyncEngine when something raises: a step, its thread, what hands out pieces. Nobody waits for ever."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from nanoinfer import AsyncEngine, AsyncStream, EngineClosedError, StepFailedError
from nanoinfer.frontends.async_stream import Delivery
from nanoinfer.frontends.deliveries import Deliveries
from nanoinfer.requests.request import Request
from nanoinfer.requests.request_group import Update
from nanoinfer.requests.stream_pieces import PieceReader, StreamPiece
from tests.helpers.async_engines import arrival, assert_all_free, following, gated
from tests.helpers.engines import greedy, make_engine
from tests.helpers.waiting import run


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_an_exception_in_a_step_fails_its_requests_and_the_engine_goes_on(kind: type[BaseException]) -> None:
    async def test() -> None:
        error = kind("out of memory")
        engine, gate = gated(open_at_once=False, rows=2)
        async with AsyncEngine(engine) as front:
            streams = [await front.add([1], greedy(20))]
            await arrival(gate, 1)
            later = [asyncio.create_task(front.add([base], greedy(20))) for base in (40, 80)]
            await asyncio.sleep(0)  # they are posted; the second pass admits one of them
            gate.error, gate.error_at = error, 3
            gate.open()
            streams += [await task for task in later]
            first = await anext(streams[0])
            with pytest.raises(StepFailedError, match=rf"request {first.request_id} ended .*{error}") as raised:
                await streams[0].output()
            assert raised.value.__cause__ is error
            with pytest.raises(StepFailedError):
                await anext(streams[0])
            with pytest.raises(StepFailedError):
                async for _ in streams[1]:
                    pass
            assert (await streams[2].output()).token_ids == following(80, 20)
            stats = await front.stats()
            assert (stats.failed, stats.finished) == (2, 1)
        assert_all_free(engine)

    run(test)


def test_a_failure_that_is_nobodys_ends_all_instead_of_failing_for_ever() -> None:
    async def test() -> None:
        engine, _ = gated()
        held = engine.model_runner.token_to_kv_pool.alloc(200)  # behind the engine's back
        assert held is not None
        async with AsyncEngine(engine) as front:
            with pytest.raises(StepFailedError, match="something outside the engine"):
                await front.generate([1] * 60, greedy(4))
            engine.model_runner.token_to_kv_pool.free(held)
            assert (await front.generate([1] * 60, greedy(2))).token_ids == [2, 3]

    run(test)


@pytest.mark.parametrize("broken_too", [(), ("abort_all", "shutdown")])
def test_a_thread_that_dies_leaves_nobody_waiting(broken_too: tuple[str, ...]) -> None:
    """That takes a bug in the engine; here `has_work` raises."""

    async def test() -> None:
        engine, gate = gated(open_at_once=False)
        front = AsyncEngine(engine)
        stream = await front.add([1], greedy(20))
        await arrival(gate, 1)

        def broken(*args: object) -> bool:
            raise ZeroDivisionError("a bug")

        engine.loop.has_work = broken  # type: ignore[method-assign]
        for name in broken_too:
            setattr(engine, name, broken)
        other = asyncio.create_task(front.generate([50], greedy(20)))
        await asyncio.sleep(0)  # it is posted
        gate.open()
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
        if not broken_too:
            assert_all_free(engine)

    run(test)


# --- streams whose pieces cannot be handed out -----------------------------------------------------------------------


async def read_all(stream: AsyncStream) -> None:
    while await stream.read():
        pass


def test_a_read_gives_the_pieces_and_then_raises_what_ended_the_request() -> None:
    async def test() -> None:
        core, gate = gated(True)
        gate.error, gate.error_at = MemoryError("too much"), 3
        async with AsyncEngine(core) as engine:
            (stream,) = await engine.add_all([Request([5], greedy(9))])
            tokens: list[int] = []
            while len(tokens) < 2:
                tokens += (await stream.read())[0].token_ids
            with pytest.raises(StepFailedError, match="too much"):
                await read_all(stream)
            assert tokens == [6, 7]

    run(test)


@pytest.fixture
def pieces_fail(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Have the pieces of a request's token number `at` fail, and all later ones."""
    read = PieceReader.read

    def fail(request_id: int, at: int) -> None:
        def broken(self: PieceReader) -> Iterator[StreamPiece]:
            if self._group.request_id == request_id and self._group.reqs[0].num_output_tokens >= at:
                raise ZeroDivisionError("no piece")
            return read(self)

        monkeypatch.setattr(PieceReader, "read", broken)

    return fail


def test_pieces_that_cannot_be_made_end_their_request_and_no_other(pieces_fail: Callable[[int, int], None]) -> None:
    async def test() -> None:
        core, gate = gated(False)
        async with AsyncEngine(core) as engine:
            broken, other = await engine.add_all([Request([5], greedy(40)), Request([50], greedy(5))])
            pieces_fail(broken.request_id, 3)
            gate.open()
            first = await broken.read()
            with pytest.raises(StepFailedError, match="no piece"):
                await read_all(broken)
            assert first[0].token_ids in (following(5, 1), following(5, 2))
            assert (await other.output()).token_ids == following(50, 5)
            assert (await engine.generate([7], greedy(3))).token_ids == following(7, 3)
        assert_all_free(core)

    run(test)


@pytest.mark.parametrize("from_now_on", [True, False])
def test_if_nothing_can_be_handed_out_all_readers_are_told(monkeypatch: pytest.MonkeyPatch, from_now_on: bool) -> None:
    """Also those of requests that ended in that step."""
    calls: list[int] = []
    hand_out = Deliveries.hand_out

    def broken(self: Deliveries, outputs: Sequence[Update]) -> list[int]:
        calls.append(len(outputs))
        if len(calls) == 3 or (from_now_on and len(calls) > 3):
            raise ZeroDivisionError("nothing can be handed out")
        return hand_out(self, outputs)

    monkeypatch.setattr(Deliveries, "hand_out", broken)

    async def test() -> None:
        core, gate = gated(False)
        async with AsyncEngine(core) as engine:
            streams = await engine.add_all([Request([5], greedy(40)), Request([50], greedy(3))])
            gate.open()
            for stream in streams:
                with pytest.raises(EngineClosedError, match="nothing can be handed out"):
                    await read_all(stream)
            if from_now_on:
                with pytest.raises(EngineClosedError):
                    await engine.generate([7], greedy(3))
            else:
                assert (await engine.generate([7], greedy(3))).token_ids == [8, 9, 10]
        assert_all_free(core)

    run(test)


def test_a_stream_that_cannot_be_told_keeps_nobody_else_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int | None] = []

    def broken(loop: asyncio.AbstractEventLoop, items: Sequence[tuple[Delivery, Any]]) -> bool:
        told.append(items[0][0].request_id)
        if len(told) == 1:
            raise ZeroDivisionError("this one cannot be told")
        return True

    monkeypatch.setattr("nanoinfer.frontends.deliveries.send", broken)
    loop, deliveries, core = asyncio.new_event_loop(), Deliveries(), make_engine()
    for prompt in ([1], [2], [3]):
        deliveries.add(Delivery(loop), core.prepare(Request(prompt, greedy(1))))
    deliveries.lose(ZeroDivisionError())
    loop.close()
    assert told == [0, 1, 2]
    assert 0 not in deliveries
