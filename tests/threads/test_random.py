"""Many coroutines at random: every request gives what it gives alone. At any moment, and beside threads: the soak's kind
`clients`."""

import asyncio

import pytest
import torch

from nanoinfer import AsyncEngine
from tests.helpers.async_engines import arrival, following, idle, with_front
from tests.helpers.engines import V, greedy

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
