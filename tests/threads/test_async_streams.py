"""Streams of an AsyncEngine: reading what has arrived, and readers that fall behind."""

import asyncio

import pytest

from nanoinfer import AsyncEngine
from nanoinfer.requests.request import Request
from tests.helpers.async_engines import assert_all_free, following, gated, idle
from tests.helpers.engines import greedy, make_engine
from tests.helpers.waiting import run, until_async


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


@pytest.mark.parametrize("how", ["read", "one by one"])
def test_a_request_whose_reader_is_behind_is_paused_until_half_is_read(how: str) -> None:
    async def test() -> None:
        core, gate = gated(False)
        async with AsyncEngine(core) as engine:
            (stream,) = await engine.add_all([Request([5], greedy(40))], max_unread=6)
            for _ in range(6):
                gate.let_one_through()
            await until_async(lambda: stream._delivery.is_held, "a reader that is behind")
            gate.open()
            while not (await engine.stats()).paused:
                pass
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
        core, gate = gated(False)
        async with AsyncEngine(core) as engine:
            (stream,) = await engine.add_all([Request([5], greedy(40))], max_unread=2)
            for _ in range(2):
                gate.let_one_through()
            await until_async(lambda: stream._delivery.is_held, "a reader that is behind")
            gate.open()
            while not (await engine.stats()).paused:
                pass
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
