"""EventStream: server-sent events of one watcher, for a client that may read slowly or go away at any time."""

import asyncio

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from nanoinfer.server.errors import ApiError, shut_down
from nanoinfer.server.live.feed import Feed, FeedEndedError, TooManyWatchersError, Watcher
from nanoinfer.server.live.limits import Limits

HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store", "x-accel-buffering": "no"}
SILENCE_SECONDS = 15.0  # without a frame; then a comment says that the connection is alive


class EventStream:
    """An ASGI response: frames of `feed` until the client is gone, reads nothing for too long, or the feed ends.

    The header `x-watcher` names the stream. A client that sends the name of an earlier one is told if that one was dropped.
    """

    def __init__(self, feed: Feed, limits: Limits):
        self._feed, self._limits = feed, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            watcher = self._feed.join()
        except (TooManyWatchersError, FeedEndedError) as error:
            refused = ApiError(503, str(error), code="too_many_watchers") if str(error) else shut_down()
            await JSONResponse(refused.content, refused.status, refused.headers)(scope, receive, send)
            return
        earlier = dict(scope.get("headers", ())).get(b"x-watcher", b"").decode("latin-1")
        tasks = {
            asyncio.create_task(self._send_frames(watcher, send, self._feed.was_dropped(earlier))),
            asyncio.create_task(_until_gone(receive)),
        }
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._feed.leave(watcher)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send_frames(self, watcher: Watcher, send: Send, was_dropped: bool) -> None:
        headers = [(name.encode(), value.encode()) for name, value in {**HEADERS, "x-watcher": watcher.name}.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            if was_dropped:
                told = f'event: dropped\ndata: {{"after_seconds":{self._limits.send_seconds:g}}}\n\n'
                await send({"type": "http.response.body", "body": told.encode(), "more_body": True})
            while True:
                frame = await watcher.next(SILENCE_SECONDS)
                message = {"type": "http.response.body", "body": frame or b": nothing new\n\n", "more_body": True}
                async with asyncio.timeout(self._limits.send_seconds):  # in this task: `wait_for` makes one per frame
                    await send(message)
        except TimeoutError:
            self._feed.drop(watcher)
        except FeedEndedError:
            await send({"type": "http.response.body", "body": b"event: end\ndata: {}\n\n", "more_body": False})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
