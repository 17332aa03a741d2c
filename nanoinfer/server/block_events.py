"""/block_events: a stream of what the tree holds, for routers in other processes. What a feed tells
(cache/block_feed.py) is written as server-sent events, and read there."""

import asyncio
import json
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from nanoinfer.cache.block_events import AllBlocksCleared, BlockEvent, BlockRemoved, BlockStored, EventBatch, Snapshot
from nanoinfer.cache.block_feed import BlockFeed
from nanoinfer.errors import EngineClosedError
from nanoinfer.server.errors import shut_down
from nanoinfer.server.service import Service

News = EventBatch | Snapshot
KINDS = {kind.__name__: kind for kind in (BlockStored, BlockRemoved, AllBlocksCleared)}
HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store", "x-accel-buffering": "no"}
SILENCE_SECONDS = 15.0  # without news; then a comment says that the connection is alive


def block_routes(service: Service) -> list[BaseRoute]:
    """The route, if the settings have an `event_block_size`. The feed starts now. ValueError if it has other blocks."""
    if service.settings.event_block_size is None:
        return []
    if not service.served.local:
        raise ValueError(
            "event_block_size: is for one engine; the replicas of a cluster tell their doors by themselves"
        )
    engine: Any = service.core
    feed: BlockFeed = engine.block_feed(service.settings.event_block_size)

    async def events(request: Request) -> Any:
        if service.is_ending.is_set() or service.engine.is_closed:
            raise shut_down()
        return BlockStream(service, feed, read_place(request.headers.get("last-event-id")))

    return [Route("/block_events", events)]


class BlockStream:
    """An ASGI response: a snapshot, then each batch, until the client is gone or the server ends. `place`: where a client
    that was here before goes on; if those batches are gone, or the server has started again, it gets a snapshot.

    Nothing is kept for a client that reads slowly: it gets a snapshot, too, once what it has missed is gone.
    """

    def __init__(self, service: Service, feed: BlockFeed, place: tuple[str, int] | None):
        self._service, self._feed = service, feed
        self._seq = place[1] if place is not None and place[0] == feed.source else None
        self._news = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        loop = asyncio.get_running_loop()

        def wake() -> None:  # in the thread that steps the engine
            loop.call_soon_threadsafe(self._news.set)

        self._feed.listeners.append(wake)
        tells = asyncio.create_task(self._tell(send))
        others = asyncio.create_task(_until_gone(receive)), asyncio.create_task(self._service.is_ending.wait())
        try:
            await asyncio.wait({tells, *others}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._feed.listeners.remove(wake)
            for task in (tells, *others):
                task.cancel()
            ended = (await asyncio.gather(tells, *others, return_exceptions=True))[0]
        if isinstance(ended, Exception) and not isinstance(ended, EngineClosedError):
            raise ended  # the connection breaks off, and the log says why
        await send({"type": "http.response.body", "body": b"event: end\ndata: {}\n\n", "more_body": False})

    async def _tell(self, send: Send) -> None:
        with_tokens = self._service.settings.show_prompts
        while True:
            self._news.clear()
            (new,) = await self._service.engine.visit_each(lambda _: self._take())
            for news in new:
                await send({"type": "http.response.body", "body": write_news(news, with_tokens), "more_body": True})
            try:
                await asyncio.wait_for(self._news.wait(), SILENCE_SECONDS)
            except TimeoutError:
                await send({"type": "http.response.body", "body": b": nothing new\n\n", "more_body": True})

    def _take(self) -> list[News]:
        """What is new, between two steps."""
        batches = None if self._seq is None else self._feed.since(self._seq)
        if self._seq is None or batches is None:
            snapshot = self._feed.snapshot()
            self._seq = snapshot.seq
            return [snapshot]
        self._seq += len(batches)
        return list(batches)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def write_news(news: News, with_tokens: bool) -> bytes:
    """One server-sent event. Its id says where to go on: after this one. Without tokens, `token_ids` are empty."""
    source, following = news.source, news.seq + isinstance(news, EventBatch)
    data: dict[str, Any] = {"seq": news.seq, "source": source}
    if isinstance(news, Snapshot):
        data["blocks"] = [_fields(block, with_tokens) for block in news.blocks]
    else:
        data |= {"ts": news.ts, "events": [_fields(event, with_tokens) for event in news.events]}
    kind = "snapshot" if isinstance(news, Snapshot) else "batch"
    text = json.dumps(data, separators=(",", ":"))
    return f"id: {source}:{following}\nevent: {kind}\ndata: {text}\n\n".encode()


def read_news(kind: str, data: str) -> News:
    """What was written, from an event's name and data. ValueError if it is something else."""
    try:
        fields = json.loads(data)
        if kind == "snapshot":
            blocks = [event for each in fields["blocks"] if isinstance(event := _event(each), BlockStored)]
            return Snapshot(int(fields["seq"]), blocks, str(fields["source"]))
        if kind == "batch":
            events = [_event(each) for each in fields["events"]]
            return EventBatch(int(fields["seq"]), float(fields["ts"]), events, str(fields["source"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"data={data[:100]!r}: is no {kind} of block events") from error
    raise ValueError(f"kind={kind!r}: must be 'snapshot' or 'batch'")


def read_place(event_id: str | None) -> tuple[str, int] | None:
    """The source and the number of the batch that comes next, from an id. None if it is no id of ours."""
    source, _, following = (event_id or "").rpartition(":")
    return (source, int(following)) if source and following.isascii() and following.isdigit() else None


def _fields(event: BlockEvent, with_tokens: bool) -> dict[str, Any]:
    fields = {"type": type(event).__name__, **asdict(event)}
    if "token_ids" in fields and not with_tokens:
        fields["token_ids"] = []
    return fields


def _event(fields: dict[str, Any]) -> BlockEvent:
    event: BlockEvent = KINDS[fields["type"]](**{name: value for name, value in fields.items() if name != "type"})
    for name in ("block_hashes", "token_ids"):
        if not all(isinstance(each, int) for each in getattr(event, name, ())):
            raise ValueError(f"{name}: must be integers")
    return event
