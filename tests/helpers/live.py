"""What tests of the live page share: engines that are looked at, frames as a browser reads them, and a feed that looks when
a test says so, with clients that read when it says so."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from nanoinfer import AsyncEngine, Engine
from nanoinfer.server.live.feed import EventStream, Feed, Watcher
from nanoinfer.server.live.limits import Limits
from nanoinfer.server.live.tape import Tape
from nanoinfer.server.live.texts import Texts
from nanoinfer.server.live.view import State, View
from tests.helpers.async_engines import gated
from tests.helpers.engines import LetterTokenizer, greedy, make_engine
from tests.helpers.waiting import HANG_S, run


def merged(before: State, changes: State) -> State:
    """What static/live_state.js does with the changes of a frame."""
    after = dict(before)
    for name, value in changes.items():
        if value is None:
            del after[name]
        elif isinstance(value, dict) and isinstance(after.get(name), dict):
            after[name] = merged(after[name], value)
        else:
            after[name] = value
    return after


def read_frame(frame: bytes) -> dict[str, Any]:
    """The data of one event."""
    head, data, *rest = frame.decode().split("\n")
    assert (head, rest) == ("event: frame", ["", ""])
    return json.loads(data.removeprefix("data: "))


def looked_at(show_prompts: bool = False, limits: Limits | None = None, **options: Any) -> tuple[Engine, View]:
    """An engine, and a view of it that takes notes of its steps."""
    engine = make_engine(**options)
    return engine, View(engine, limits or Limits(), show_prompts)


def step(engine: Engine, view: View, times: int = 1) -> None:
    for _ in range(times):
        engine.step()
        view.notes.after_pass(engine)


def finish(engine: Engine, view: View, *prompts: str, max_new_tokens: int = 4) -> None:
    """Serve prompts to their ends."""
    for prompt in prompts:
        engine.add_request(prompt, greedy(max_new_tokens))
    while engine.has_unfinished():
        step(engine, view)


def cells(state: State) -> list[int]:
    """The code of each cell of the map."""
    lines = state["map"]["lines"]
    runs = [lines[name] for name in sorted(lines, key=int)]
    return [code for line in runs for length, code in zip(line[::2], line[1::2], strict=True) for _ in range(length)]


class SteppedFeed(Feed):
    """A feed that looks when the test says so, and notes how long it would have waited."""

    def __init__(self, front: AsyncEngine, limits: Limits, show_prompts: bool = False, tokenizer: Any = None):
        self.front, self.limits, self.is_over = front, limits, False
        self.pauses: list[float] = []
        self._go = asyncio.Semaphore(0)
        core = front.llm
        self.view = View(core, limits, show_prompts)  # type: ignore[arg-type]
        self.tape = Tape(core, limits, self.view.notes.after_pass)  # type: ignore[arg-type]
        texts = Texts(tokenizer or LetterTokenizer(), limits)
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
        engine, _ = gated()
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

    def watch(self, feed: Feed, limits: Limits) -> "asyncio.Task[None]":
        """Read the feed's stream."""
        return asyncio.create_task(EventStream(feed, limits)({"type": "http"}, self.receive, self.send))  # type: ignore[arg-type]

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.messages[1:]]
