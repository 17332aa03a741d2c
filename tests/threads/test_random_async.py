"""AsyncEngine under many coroutines at once, some of which are cancelled at random. The soak does it without a gate."""

import asyncio

import pytest
import torch

from nanoinfer import AsyncEngine
from tests.helpers.async_engines import arrival, assert_all_free, following, gated, idle
from tests.helpers.engines import V, greedy
from tests.helpers.waiting import run

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


def check_coroutines(seed: int, pass_by_pass: bool) -> None:
    """Tiny pools, so that requests are evicted and retracted, too. Who is not cancelled gets exactly the right tokens.

    `pass_by_pass`: a pass is made between two cancels, and no other.
    """
    generator = torch.Generator().manual_seed(seed)

    def integer(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    async def test() -> None:
        engine, gate = gated(
            not pass_by_pass,
            slots=96,
            rows=8,
            chunked_prefill_size=16,
            schedule_conservativeness=0.001,
            page_size=(1, 4)[seed % 2],
        )
        async with AsyncEngine(engine) as front:
            tasks = []
            for _ in range(COROUTINES):
                prompt = [*range(integer(0, 30)), integer(0, V)]
                job = one(front, prompt, integer(1, 30), how=integer(0, 4), after=integer(1, 10))
                tasks.append(asyncio.create_task(job))
                if integer(0, 4) == 0:
                    await asyncio.sleep(0)
            if pass_by_pass:
                await arrival(gate, 1)
            cancelled = set()
            for _ in range(16):
                i, seen = integer(0, COROUTINES), gate.arrivals
                if tasks[i].cancel():
                    cancelled.add(i)
                looking = asyncio.create_task(front.check_integrity())
                await asyncio.sleep(0)  # both are posted
                if pass_by_pass:
                    gate.let_one_through()
                    await arrival(gate, seen + 1)
                await looking
            gate.open()
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
        assert_all_free(engine)

    run(test)


@pytest.mark.parametrize("seed", range(2))
def test_64_coroutines_of_which_some_are_cancelled_between_two_passes(seed: int) -> None:
    check_coroutines(seed, pass_by_pass=True)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_64_coroutines_of_which_some_are_cancelled_at_any_moment(seed: int) -> None:
    check_coroutines(seed, pass_by_pass=False)
