"""The live page's feed as tests drive it: it looks when they say so, and clients read when they say so."""

import asyncio
from collections.abc import Callable
from typing import Any

from nanoinfer import AsyncEngine
from nanoinfer.server.live.event_stream import EventStream
from nanoinfer.server.live.excerpts import Texts
from nanoinfer.server.live.feed import Feed, Watcher
from nanoinfer.server.live.limits import Limits
from nanoinfer.server.live.tape import Tape
from nanoinfer.server.live.view import View
from tests.helpers.async_engines import gated
from tests.helpers.live import SpellingTokenizer, read_frame
from tests.helpers.waiting import HANG_S, run


class SteppedFeed(Feed):
    """A feed that looks when the test says so, and notes how long it would have waited."""

    def __init__(self, front: AsyncEngine, limits: Limits, show_prompts: bool = False, tokenizer: Any = None):
        self.front, self.limits, self.is_over = front, limits, False
        self.pauses: list[float] = []
        self._go = asyncio.Semaphore(0)
        core = front.llm
        self.view = View(core, limits, show_prompts)  # type: ignore[arg-type]
        self.tape = Tape(core, limits, self.view.notes.after_pass)  # type: ignore[arg-type]
        texts = Texts(tokenizer or SpellingTokenizer(), limits)
        super().__init__(lambda: front, self.view, self.tape, texts, {"about": 1}, limits, lambda: self.is_over)

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await self._go.acquire()

    async def look(self) -> None:
        """Until the feed has looked once more."""
        before = len(self.pauses)
        self._go.release()
        while len(self.pauses) == before and self._task is not None:
            await asyncio.sleep(0)

    async def started(self) -> None:
        while not self.pauses:
            await asyncio.sleep(0)


def with_feed(
    test: Callable[[SteppedFeed, AsyncEngine], Any], limits: Limits | None = None, **options: Any
) -> Callable[[], None]:
    async def body() -> None:
        engine, _ = gated(tokenizer=SpellingTokenizer())
        async with AsyncEngine(engine) as front:
            feed = SteppedFeed(front, limits or Limits(send_seconds=HANG_S), **options)
            await test(feed, front)
            feed.is_over = True
            feed._go.release()

    return lambda: run(body)


async def next_frame(watcher: Watcher) -> dict[str, Any]:
    frame = await watcher.next(HANG_S)
    assert frame is not None
    return read_frame(frame)


class Client:
    """The ASGI server's side of a connection whose client takes messages when the test says so."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.takes = asyncio.Semaphore(0)
        self.gone = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.takes.acquire()
        self.messages.append(message)

    def watch(self, feed: Feed, limits: Limits, earlier: str = "") -> "asyncio.Task[None]":
        """Read the feed's stream; `earlier`: the name of this client's stream before this one."""
        scope = {"type": "http", "headers": [(b"x-watcher", earlier.encode())] if earlier else []}
        return asyncio.create_task(EventStream(feed, limits)(scope, self.receive, self.send))  # type: ignore[arg-type]

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.messages[1:]]
