"""What the tests of `bench serve` share: a server that tests program, and answers cut into packets."""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nanoinfer.bench import load
from nanoinfer.bench.serve import Goodput
from nanoinfer.bench.servers import ServerSpec
from tests.helpers import fake_server
from tests.helpers.waiting import HANG_S, until_async

FAKE = Path(fake_server.__file__)
NEW_TOKENS = 4
GOOD = Goodput(60_000, 60_000)


def fake(name: str, **options: Any) -> ServerSpec:
    """A server to measure that is `tests/helpers/fake_server.py` with these options."""
    return ServerSpec(name, str(FAKE), options=options)


def stream(*events: str, separator: str = "\n\n", chunked: bool = True) -> bytes:
    """An answer of these events, each in a chunk of its own."""
    datas = [f"{event}{separator}".encode() for event in events]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
    if not chunked:
        return head + b"\r\n" + b"".join(datas)
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(data), data) for data in datas)
    return head + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


def text_event(text: str, reason: str | None = None) -> str:
    return "data: " + json.dumps({"choices": [{"text": text, "finish_reason": reason}]}, ensure_ascii=False)


def cut(data: bytes, places: list[int]) -> list[tuple[float, bytes]]:
    """`data` in packets; the time of a packet is its number."""
    edges = [0, *sorted(places), len(data)]
    return [(float(i), data[a:b]) for i, (a, b) in enumerate(pairwise(edges))]


def pieces_of(count: int) -> list[bytes]:
    """An answer, cut into packets that have a piece of text each."""
    data = stream(*(text_event("a") for _ in range(count)), text_event("", "length"), "data: [DONE]")
    places, at = [], 0
    for _ in range(count - 1):
        at = data.index(b"\n\n\r\n", at) + 4
        places.append(at)
    return [part for _, part in cut(data, places)]


class Ticking:
    """A clock for the loops of `bench serve`. Each look at it takes a millisecond, and who sleeps moves it on: what fits
    into a window is not up to the machine. `over`: when the loops' waiting for answers ends; None: never."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.now, self.over = 0.0, None
        names = {"sleep": self._sleep, "wait_for": self._wait_for, "gather": asyncio.gather}
        names |= {"TaskGroup": asyncio.TaskGroup, "open_connection": asyncio.open_connection}
        patch.setattr(load, "asyncio", SimpleNamespace(**names))
        patch.setattr(load, "time", self)

    over: Callable[[], bool] | None
    process_time = staticmethod(time.process_time)

    def perf_counter(self) -> float:
        self.now += 0.001
        return self.now

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)

    async def _wait_for(self, work: Coroutine[Any, Any, None], seconds: float) -> None:
        over, task = self.over, asyncio.ensure_future(work)
        if over is None:
            await asyncio.wait_for(task, HANG_S)
            return
        await until_async(lambda: task.done() or over())
        task.cancel()
        raise TimeoutError
