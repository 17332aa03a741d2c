"""What a feed tells (see cache/block_feed.py) as server-sent events, and back, for routers in other processes."""

import json
from dataclasses import asdict
from typing import Any

from nanoinfer.cache.block_events import AllBlocksCleared, BlockEvent, BlockRemoved, BlockStored, EventBatch, Snapshot

News = EventBatch | Snapshot
KINDS = {kind.__name__: kind for kind in (BlockStored, BlockRemoved, AllBlocksCleared)}


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
