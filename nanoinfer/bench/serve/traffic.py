"""Closed loop: so many clients, each of which waits for its answer before it asks again. Open loop: requests come when they
come, however many are unanswered: as Poisson would have them, at a rate.

Both begin requests for `seconds`, then wait for the answers that are missing, at most as long again.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from nanoinfer.bench.serve.answers import read_answer
from nanoinfer.bench.serve.client import Client, Exchange
from nanoinfer.bench.serve.stalls import Stalls

Requests = Callable[[int], bytes]  # the i-th request of a cell
SETTLE_S = 60.0
REFUSED_WAIT_S = 1.0  # a client that is refused waits so long, unless the server says how long


@dataclass
class Traffic:
    """What happened: exchanges in the order of their requests. `began`: when the clock started.

    `client_s`: the processor time that the client took, of `wall_s` seconds. `stall_s`: see stalls.py.
    """

    seconds: float
    began: float = 0.0
    exchanges: list[Exchange] = field(default_factory=list)
    client_s: float = 0.0
    wall_s: float = 0.0
    stall_s: float = 0.0


async def closed_loop(port: int, requests: Requests, clients: int, seconds: float) -> Traffic:
    """`clients` ask one request after another."""
    client, numbers = Client(port), count()

    async def ask_again_and_again(traffic: Traffic) -> None:
        end = traffic.began + seconds
        while time.perf_counter() < end:
            request = requests(next(numbers))
            exchange = Exchange(time.perf_counter())
            traffic.exchanges.append(exchange)
            await client.ask(request, exchange)
            if (pause := _pause(exchange)) is not None:
                await asyncio.sleep(min(pause, max(0.0, end - time.perf_counter())))

    async def all_of_them(traffic: Traffic) -> None:
        await asyncio.gather(*(ask_again_and_again(traffic) for _ in range(clients)))

    return await _run(client, all_of_them, seconds)


async def open_loop(port: int, requests: Requests, rate: float, seconds: float, seed: str) -> Traffic:
    """`rate` requests per second, at times that `seed` decides."""
    client, times = Client(port), arrivals(rate, seconds, seed)
    ready = [requests(number) for number in range(len(times))]

    async def as_they_come(traffic: Traffic) -> None:
        async with asyncio.TaskGroup() as group:
            for at, request in zip(times, ready, strict=True):
                due = traffic.began + at
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                exchange = Exchange(due)
                traffic.exchanges.append(exchange)
                group.create_task(client.ask(request, exchange))

    return await _run(client, as_they_come, seconds)


async def settle(port: int, request: bytes) -> None:
    """Have one request served before the clock starts. A server that was stopped is awake then; one that serves requests
    one after another, and goes on with those whose clients have left, is done with them."""
    client = Client(port)
    with suppress(TimeoutError):  # what is wrong will show in the measurement
        await asyncio.wait_for(client.ask(request, Exchange(0.0)), SETTLE_S)
    client.close()


def arrivals(rate: float, seconds: float, seed: str) -> list[float]:
    """Times of arrivals in `seconds`, with gaps that are distributed exponentially. At least one."""
    rng, times, at = Random(seed), list[float](), 0.0
    while (at := at + rng.expovariate(rate)) < seconds or not times:
        times.append(min(at, seconds))
    return times


async def _run(client: Client, work: Callable[[Traffic], Coroutine[Any, Any, None]], seconds: float) -> Traffic:
    traffic = Traffic(seconds, time.perf_counter())
    cpu_before = time.process_time()
    with Stalls() as stalls, suppress(TimeoutError):  # exchanges that have not ended say so
        await asyncio.wait_for(work(traffic), 2 * seconds)
    client.close()
    traffic.client_s = time.process_time() - cpu_before
    traffic.wall_s = time.perf_counter() - traffic.began
    traffic.stall_s = stalls.longest
    return traffic


def _pause(exchange: Exchange) -> float | None:
    """How long a client waits before it asks again: not at all after an answer."""
    if exchange.ended is not None:
        head = exchange.packets[0][1]
        if head.startswith(b"HTTP/1.1 200"):
            return None
        return read_answer(exchange.packets).retry_after_s or REFUSED_WAIT_S
    return REFUSED_WAIT_S
