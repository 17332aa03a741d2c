"""Timed requests to a server: what its clients see. (workloads.py, which graders load, has what needs no server.)"""

import asyncio
import time
from collections.abc import Sequence
from random import Random

from nanoinfer.bench.load import Exchange, as_request, ask
from notebooks.course.explore.utilisation import arrivals_of
from notebooks.course.workloads import Ask, Timed


async def send_timed(port: int, load: Sequence[Ask], rate: float, seed: str = "", bursts: bool = False) -> list[Timed]:
    """Ask a server of SmolLM2 in an open loop, `rate` requests per second with random prompts; what was answered with 200.
    `bursts`: they arrive as the load says, not at random."""
    rng, start = Random(f"{seed} {rate} {bursts}"), time.perf_counter() + 0.1
    times = [each.at for each in load] if bursts else arrivals_of(1, len(load))
    exchanges = [Exchange(start + at * len(load) / times[-1] / rate) for at in times]

    async def one(each: Ask, exchange: Exchange) -> None:
        prompt = [rng.randrange(100, 40_000) for _ in range(each.prompt_tokens)]  # nobody has sent it before
        request = as_request({"model": "smollm2", "prompt": prompt, "max_tokens": each.new_tokens})
        await asyncio.sleep(exchange.due - time.perf_counter())
        await ask(port, request, exchange)

    await asyncio.gather(*map(one, load, exchanges))
    return [Timed(each.due, each.times) for each in exchanges if each.read().status == 200]
