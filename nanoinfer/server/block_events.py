"""/block_events: a stream of what the tree holds, for routers in other processes. What a feed tells
(cache/block_feed.py) is written as server-sent events, and read there."""

import asyncio
import json
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

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
            "event_block_size: is for one engine; the replicas of a cluster tell their ingresses by themselves"
        )
    engine: Any = service.core
    feed: BlockFeed = engine.block_feed(service.settings.event_block_size)

    async def events(request: Request) -> Response:
        place = read_place(request.headers.get("last-event-id"))
        return endless(service, events_of(service, feed, place))

    return [Route("/block_events", events)]


def endless(service: Service, events: AsyncIterator[bytes]) -> Response:
    """The answer that goes on until its client is gone or the server ends. ApiError (503) when that is so."""
    if service.is_ending.is_set() or service.engine.is_closed:
        raise shut_down()
    return StreamingResponse(events, headers=HEADERS)


async def events_of(service: Service, feed: BlockFeed, place: tuple[str, int] | None) -> AsyncIterator[bytes]:
    """A snapshot, then each batch, until the client is gone or the server ends. `place`: where a client that was here
    before goes on; if those batches are gone, or the server has started again, it gets a snapshot.

    Nothing is kept for a client that reads slowly: it gets a snapshot, too, once what it has missed is gone.
    """
    seq = place[1] if place is not None and place[0] == feed.source else None
    is_new, loop = asyncio.Event(), asyncio.get_running_loop()

    def wake() -> None:  # in the thread that steps the engine
        loop.call_soon_threadsafe(is_new.set)

    feed.listeners.append(wake)
    ending = asyncio.create_task(service.is_ending.wait())
    try:
        while not ending.done():
            is_new.clear()
            (news,) = await service.engine.visit_each(lambda _, seq=seq: take(feed, seq))
            for each in news:
                seq = each.seq + isinstance(each, EventBatch)
                yield write_news(each, service.settings.show_prompts)
            waiting = asyncio.create_task(is_new.wait())
            if not (await asyncio.wait({waiting, ending}, timeout=SILENCE_SECONDS, return_when=FIRST_COMPLETED))[0]:
                yield b": nothing new\n\n"
            waiting.cancel()
    except EngineClosedError:
        pass
    finally:
        feed.listeners.remove(wake)
        ending.cancel()
    yield b"event: end\ndata: {}\n\n"


def take(feed: BlockFeed, seq: int | None) -> Sequence[News]:
    """What is new from batch `seq` on. Call it between two steps."""
    batches = None if seq is None else feed.since(seq)
    return [feed.snapshot()] if batches is None else batches


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
    if kind not in ("snapshot", "batch"):
        raise ValueError(f"kind={kind!r}: must be 'snapshot' or 'batch'")
    try:
        fields = json.loads(data)
        written = fields["blocks" if kind == "snapshot" else "events"]
        events: list[Any] = [KINDS[each.pop("type")](**each) for each in written]
        if kind == "snapshot":
            return Snapshot(int(fields["seq"]), events, str(fields["source"]))
        return EventBatch(int(fields["seq"]), float(fields["ts"]), events, str(fields["source"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"data={data[:100]!r}: is no {kind} of block events") from error


def read_place(event_id: str | None) -> tuple[str, int] | None:
    """The source and the number of the batch that comes next, from an id. None if it is no id of ours."""
    source, _, following = (event_id or "").rpartition(":")
    return (source, int(following)) if source and following.isascii() and following.isdigit() else None


def _fields(event: BlockEvent, with_tokens: bool) -> dict[str, Any]:
    fields = {"type": type(event).__name__, **asdict(event)}
    if "token_ids" in fields and not with_tokens:
        fields["token_ids"] = []
    return fields
