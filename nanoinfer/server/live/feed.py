"""Feed: looks at the engine while somebody watches, and keeps the newest frame for all watchers; and its events."""

import asyncio
import json
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from nanoinfer.engine.engine import Engine
from nanoinfer.errors import EngineClosedError
from nanoinfer.frontends.async_engine import AsyncEngine
from nanoinfer.server.errors import ApiError, shut_down
from nanoinfer.server.live.limits import Limits
from nanoinfer.server.live.tape import Tape
from nanoinfer.server.live.texts import Texts
from nanoinfer.server.live.view import Look, State, View

logger = logging.getLogger(__name__)
SPEED_SECONDS = 1.0  # tokens per second are those of the last second
HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store", "x-accel-buffering": "no"}
SILENCE_SECONDS = 15.0  # without a frame; then a comment says that the connection is alive


class TooManyWatchersError(Exception):
    """`limits.watchers` browsers watch already."""


class FeedEndedError(Exception):
    """There will be no more frames: the server ends, or the engine has been shut down."""


class Watcher:
    """One browser's place in the feed. It holds no frames: one that reads slowly skips those that it has missed."""

    def __init__(self, feed: "Feed", seen: int):
        self._feed, self._seen = feed, seen
        self._needs_keyframe = True
        self.ended = False  # the feed sends it away

    async def next(self, timeout_s: float) -> bytes | None:
        """The newest frame as soon as there is one that this watcher has not seen: what has changed since the frame before,
        or the whole state if it has not seen that one. None after `timeout_s` without a new one. FeedEndedError."""
        if self._feed.number == self._seen and not self.ended:
            await self._feed.wait(timeout_s)
        if self.ended:
            raise FeedEndedError
        if self._feed.number == self._seen:
            return None
        follows = self._feed.number == self._seen + 1 and not self._needs_keyframe
        self._seen, self._needs_keyframe = self._feed.number, False
        return self._feed.changes if follows else self._feed.keyframe()


class Feed:
    """Frames of one engine, encoded once for all watchers.

    Without watchers it does nothing: no task runs, and the engine's thread notes nothing. `about`: what does not change,
    for keyframes. `is_ending`: whether the server has begun to end; then the watchers are sent away.
    """

    def __init__(
        self,
        get_engine: Callable[[], AsyncEngine],
        view: View,
        tape: Tape,
        texts: Texts,
        about: dict[str, Any],
        limits: Limits,
        is_ending: Callable[[], bool] = lambda: False,
    ):
        self._get_engine, self._view, self._tape, self._texts = get_engine, view, tape, texts
        self._about = {**about, "feed": secrets.token_hex(8)}  # tells a page whether it is the same one after a loss
        self._limits, self._is_ending = limits, is_ending
        self._watchers: set[Watcher] = set()
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._tokens: deque[tuple[float, int]] = deque()  # (time, output tokens until then)
        self._state: State = {}
        self._keyframe: bytes | None = None
        self.number = -1  # of the newest frame; it never goes back
        self.changes = b""

    # --- for watchers --------------------------------------------------------------------------------------------

    def join(self) -> Watcher:
        """A new watcher; somebody must call `leave`. TooManyWatchersError, FeedEndedError."""
        if self._is_ending():
            raise FeedEndedError
        if len(self._watchers) >= self._limits.watchers:
            raise TooManyWatchersError(f"too many browsers watch: at most {self._limits.watchers}")
        watcher = Watcher(self, -1 if self._state else self.number)
        self._watchers.add(watcher)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="nanoinfer-live-feed")
        return watcher

    def leave(self, watcher: Watcher) -> None:
        """The watcher is gone. After the last one, the feed stops looking."""
        self._watchers.discard(watcher)

    async def wait(self, timeout_s: float) -> None:
        """Until the next frame or the end, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._news.wait()

    def keyframe(self) -> bytes:
        """The whole state of the newest frame."""
        if self._keyframe is None:
            self._keyframe = self._encode({"key": True, "about": self._about, "state": self._state})
        return self._keyframe

    # --- looking -------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Look while there are watchers. If that fails, they are sent away, and the next one to join starts it again."""
        try:
            while self._watchers:
                await self._look_while_watched(self._get_engine())
        except EngineClosedError:
            pass
        except Exception:
            logger.exception("the live page's feed failed")
        finally:
            self._tape.stop()  # the engine may outlive its server
            for watcher in self._watchers:
                watcher.ended = True
            self._watchers.clear()
            self._task = None
            self._wake()

    async def _look_while_watched(self, engine: AsyncEngine) -> None:
        try:
            while self._watchers and not self._is_ending():
                look = await engine.visit(self._look)
                began = time.thread_time()
                if look.excerpts is not None:
                    self._texts.add_to(look.state, look.excerpts)
                look.state["speed"] = self._speed(look.state["counts"]["output_tokens"])
                self._publish(look.state)
                seconds = look.seconds + time.thread_time() - began
                await self.pause(max(self._shortest_pause(), seconds / self._limits.share_of_time))
        finally:
            self._state, self._keyframe, self._tokens = {}, None, deque()
        if self._is_ending():
            raise EngineClosedError("the server is ending")
        await engine.visit(self._clear)

    def _look(self, engine: Engine) -> Look:
        self._tape.keep_up()
        return self._view.look(engine)

    def _clear(self, engine: Engine) -> None:
        self._tape.stop()
        self._view.clear(engine)

    def _shortest_pause(self) -> float:
        """Seconds between two frames: the more browsers get each of them, the longer."""
        return max(1 / self._limits.frames_per_second, len(self._watchers) / self._limits.sends_per_second)

    async def pause(self, seconds: float) -> None:
        """Wait before the next look."""
        await asyncio.sleep(seconds)

    def _publish(self, state: State) -> None:
        changes = difference(self._state, state)
        if not changes:
            return
        self._state, self._keyframe = state, None
        self.number += 1
        self.changes = self._encode({"state": changes})
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _encode(self, fields: dict[str, Any]) -> bytes:
        data = json.dumps({"number": self.number, **fields}, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return b"event: frame\ndata: " + data.encode("utf-8", "replace") + b"\n\n"

    def _speed(self, tokens: int) -> float:
        """Output tokens per second of the last second."""
        now = time.perf_counter()
        self._tokens.append((now, tokens))
        while len(self._tokens) > 2 and now - self._tokens[1][0] >= SPEED_SECONDS:
            self._tokens.popleft()
        began, before = self._tokens[0]
        return round((tokens - before) / (now - began), 1) if now > began else 0.0


def difference(before: State, after: State) -> State:
    """What must be set in `before` to make it `after`, which is what most frames carry: fields that are new or different,
    and None for those that are gone. static/live_state.js has the inverse.

    Dicts within are compared field by field, everything else as a whole. No field of a state may be None itself.
    """
    changes: State = {}
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            if inner := difference(old, value):
                changes[name] = inner
        elif value != old or name not in before:
            changes[name] = value
    changes.update((name, None) for name in before if name not in after)
    return changes


class EventStream:
    """An ASGI response: frames of `feed` until the client is gone, reads nothing for too long, or the feed ends."""

    def __init__(self, feed: Feed, limits: Limits):
        self._feed, self._limits = feed, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            watcher = self._feed.join()
        except (TooManyWatchersError, FeedEndedError) as error:
            refused = ApiError(503, str(error), code="too_many_watchers") if str(error) else shut_down()
            await JSONResponse(refused.content, refused.status, refused.headers)(scope, receive, send)
            return
        tasks = {
            asyncio.create_task(self._send_frames(watcher, send)),
            asyncio.create_task(_until_gone(receive)),
        }
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._feed.leave(watcher)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send_frames(self, watcher: Watcher, send: Send) -> None:
        headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            while True:
                frame = await watcher.next(SILENCE_SECONDS)
                message = {"type": "http.response.body", "body": frame or b": nothing new\n\n", "more_body": True}
                async with asyncio.timeout(self._limits.send_seconds):  # in this task: `wait_for` makes one per frame
                    await send(message)
        except TimeoutError:
            pass  # it does not read: if it comes back, it gets the whole state
        except FeedEndedError:
            await send({"type": "http.response.body", "body": b"event: end\ndata: {}\n\n", "more_body": False})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
