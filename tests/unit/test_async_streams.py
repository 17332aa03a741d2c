"""AsyncEngine for servers: several requests at once, reading what has arrived, readers that fall behind, visits."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from nanoinfer import AsyncEngine, AsyncStream, EngineClosedError, InvalidRequestError, QueueFullError, StepFailedError
from nanoinfer.async_stream import Delivery
from nanoinfer.deliveries import Deliveries
from nanoinfer.requests.outputs import PieceReader, RequestOutput, StreamPiece
from nanoinfer.requests.request import Request
from tests.helpers.async_engines import assert_all_free, following, gated, idle, run
from tests.helpers.engines import greedy, make_engine


async def read_all(stream: AsyncStream) -> None:
    while await stream.read():
        pass


def test_several_requests_are_added_together() -> None:
    async def test() -> None:
        async with AsyncEngine(make_engine()) as engine:
            streams = await engine.add_all([Request([5], greedy(3)), Request([50], greedy(2))])
            outputs = [await stream.output() for stream in streams]
            assert [output.token_ids for output in outputs] == [following(5, 3), following(50, 2)]

    run(test)


@pytest.mark.parametrize(("prompt", "error"), [([500], InvalidRequestError), ([5], QueueFullError)])
def test_of_several_requests_all_are_added_or_none(prompt: list[int], error: type[Exception]) -> None:
    async def test() -> None:
        core = make_engine(max_queue=2)
        async with AsyncEngine(core) as engine:
            with pytest.raises(error):
                await engine.add_all([Request([5], greedy(3)), Request([6], greedy(3)), Request(prompt, greedy(3))])
            stats = await engine.stats()
            assert (stats.waiting, stats.running, stats.prompt_tokens) == (0, 0, 0)
            assert (await engine.generate([7], greedy(2))).token_ids == [8, 9]

    run(test)


def test_a_read_joins_what_has_arrived_per_completion() -> None:
    async def test() -> None:
        core, gate = gated(False)
        async with AsyncEngine(core) as engine:
            (stream,) = await engine.add_all([Request([5], greedy(4, logprobs=0, prompt_logprobs=False))])
            gate.let_one_through()
            (first,) = await stream.read()
            assert (first.token_ids, first.finish_reason, len(first.logprobs or [])) == ([6], None, 1)
            assert stream.final is None
            gate.open()
            await idle(engine)
            await asyncio.sleep(0)
            (rest,) = await stream.read()
            assert (rest.token_ids, rest.finish_reason, len(rest.logprobs or [])) == ([7, 8, 9], "length", 3)
            assert await stream.read() == []
            assert await stream.read() == []
            assert stream.final is not None
            assert stream.final.token_ids == [6, 7, 8, 9]

    run(test)


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


@pytest.mark.parametrize("how", ["read", "one by one"])
def test_a_request_whose_reader_is_behind_is_paused_until_half_is_read(how: str) -> None:
    async def test() -> None:
        core, gate = gated(False)
        async with AsyncEngine(core) as engine:
            (stream,) = await engine.add_all([Request([5], greedy(40))], max_unread=6)
            for _ in range(6):
                gate.let_one_through()
            while not stream._delivery.is_held:
                await asyncio.sleep(0)
            gate.open()
            while not (await engine.stats()).paused:
                await asyncio.sleep(0)
            stats = await engine.stats()
            assert (stats.running, stats.request_slots) == (0, 0)
            assert gate.passes in (6, 7), "the seventh may have begun before the pause"
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
        assert_all_free(core)

    run(test)


def test_a_request_that_is_aborted_while_its_reader_is_behind_ends() -> None:
    async def test() -> None:
        core, _ = gated(True)
        async with AsyncEngine(core) as engine:
            (stream,) = await engine.add_all([Request([5], greedy(40))], max_unread=2)
            while not (await engine.stats()).paused:
                await asyncio.sleep(0)
            stream.close()
            last = [piece async for piece in stream][-1]
            assert last.finish_reason == "abort"
            await engine.check_integrity()
        assert_all_free(core)

    run(test)


@pytest.mark.parametrize("wrong", [0, -1, True])
def test_max_unread_is_checked(wrong: int) -> None:
    async def test() -> None:
        async with AsyncEngine(make_engine()) as engine:
            with pytest.raises(ValueError, match="max_unread"):
                await engine.add_all([Request([5], greedy(1))], max_unread=wrong)

    run(test)


def test_a_visit_sees_the_engine_between_two_steps() -> None:
    async def test() -> None:
        core = make_engine()
        async with AsyncEngine(core) as engine:
            assert engine.engine is core
            await engine.generate([5], greedy(3))
            assert await engine.visit(lambda visited: visited is core and visited.flush_cache()) == 3
            with pytest.raises(ZeroDivisionError):
                await engine.visit(lambda visited: 1 / 0)
            assert not engine.is_closed
        assert engine.is_closed

    run(test)


# --- streams whose pieces cannot be handed out -----------------------------------------------------------------------


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

    def broken(self: Deliveries, outputs: Sequence[RequestOutput]) -> list[int]:
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
                with pytest.raises(EngineClosedError if from_now_on else (StepFailedError, EngineClosedError)):
                    await read_all(stream)
            with pytest.raises(EngineClosedError):
                await engine.generate([7], greedy(3))
        assert_all_free(core)

    run(test)


def test_a_stream_that_cannot_be_told_keeps_nobody_else_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int | None] = []

    def broken(loop: asyncio.AbstractEventLoop, items: Sequence[tuple[Delivery, Any]]) -> bool:
        told.append(items[0][0].request_id)
        if len(told) == 1:
            raise ZeroDivisionError("this one cannot be told")
        return True

    monkeypatch.setattr("nanoinfer.deliveries.send", broken)
    loop, deliveries, core = asyncio.new_event_loop(), Deliveries(), make_engine()
    for prompt in ([1], [2], [3]):
        deliveries.add(Delivery(loop), core.prepare(Request(prompt, greedy(1))))
    deliveries.lose(None)
    loop.close()
    assert told == [0, 1, 2]
    assert 0 not in deliveries
