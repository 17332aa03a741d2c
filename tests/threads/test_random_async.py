"""AsyncEngine under many coroutines at once, some of which are cancelled at random."""

import asyncio

import pytest
import torch

from nanoinfer import (
    AsyncEngine,
)
from tests.helpers.async_engines import assert_all_free, following, gated, idle, run
from tests.helpers.engines import V, greedy


@pytest.mark.parametrize("seed", range(3))
def test_64_coroutines_with_random_cancels(seed: int) -> None:
    """Tiny pools, so that requests are evicted and retracted, too. Who is not cancelled gets exactly the right tokens."""
    generator = torch.Generator().manual_seed(seed)

    def integer(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    async def one(front: AsyncEngine, i: int, prompt: list[int], count: int, how: int, after: int) -> str:
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

    async def test() -> None:
        engine, _ = gated(
            slots=96, rows=8, chunked_prefill_size=16, schedule_conservativeness=0.001, page_size=(1, 4)[seed % 2]
        )
        async with AsyncEngine(engine) as front:
            tasks = []
            for i in range(64):
                prompt = [*range(integer(0, 30)), integer(0, V)]
                job = one(front, i, prompt, integer(1, 30), how=integer(0, 4), after=integer(1, 10))
                tasks.append(asyncio.create_task(job))
                if integer(0, 4) == 0:
                    await asyncio.sleep(0)
            cancelled = set()
            for _ in range(16):
                await asyncio.sleep(0.001)
                i = integer(0, 64)
                if tasks[i].cancel():
                    cancelled.add(i)
                await front.check_integrity()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            for i, result in enumerate(results):
                if isinstance(result, BaseException):
                    assert isinstance(result, asyncio.CancelledError), result
                    assert i in cancelled
            assert sum(isinstance(result, str) for result in results) >= 32
            await idle(front)
            stats = await front.stats()
            assert stats.failed == 0
            assert stats.finished + stats.aborted <= 64
        assert_all_free(engine)

    run(test)
