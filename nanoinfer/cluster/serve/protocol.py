"""What the ingress and the replicas say to each other, small and picklable; and how a replica answers a call, without
Ray."""

import asyncio
import pickle
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nanoinfer.async_llm import AsyncEngine
from nanoinfer.cache.block_events import EventBatch, Snapshot
from nanoinfer.cluster.costs import PassCosts
from nanoinfer.config import EngineConfig
from nanoinfer.engine.async_stream import AsyncStream
from nanoinfer.outputs import StreamPiece
from nanoinfer.requests.request import Request

ALIVE_S = 1.0  # a call hears from its replica at least this often


@dataclass(frozen=True)
class Call:
    """The ingress asks for completions of one prompt. `requests`: one per completion that has not ended, each with n=1.

    `call_id`: the same however often the call moves to another replica. `ingress`: who asks. `avoid`: replicas that
    have lost or refused it.
    """

    call_id: str
    ingress: str
    requests: Sequence[Request]
    avoid: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Addressed:
    """Something for one replica, of whatever kind its method takes; "" is any replica."""

    replica: str
    ingress: str = ""
    content: Any = None


@dataclass(frozen=True)
class Accepted:
    """First answer to a Call: its requests are queued at `replica`."""

    replica: str


@dataclass(frozen=True)
class Refused:
    """First and only answer to a Call that cannot be queued: the error, as the engine raised it."""

    replica: str
    error: Exception


@dataclass(frozen=True)
class Ended:
    """The end of a completion; its last piece came before. `error`: what failed, if a step did."""

    index: int
    drafted_tokens: int
    accepted_tokens: int
    error: Exception | None = None


@dataclass(frozen=True)
class News:
    """What is new: pieces, whose `index` is a request's place in the Call. Empty: the replica is alive, and that is all."""

    pieces: Sequence[StreamPiece] = ()
    ends: Sequence[Ended] = ()


@dataclass(frozen=True)
class TreeUpdate:
    """What has changed in a replica's tree since a batch that the ingress names, or all of it."""

    batches: Sequence[EventBatch] = ()
    snapshot: Snapshot | None = None


@dataclass(frozen=True)
class Description:
    """What an ingress must know about the model that the replicas serve. `path`: its folder, for the tokenizer; None
    if it has none. `costs`: of its passes, if they were measured."""

    name: str
    path: str | None
    config: EngineConfig
    vocab_size: int
    end_token_ids: Sequence[int]
    adapters: Sequence[str] = field(default_factory=tuple)
    most_tokens: int = 0
    costs: PassCosts | None = None
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)


Answer = Accepted | Refused | News


async def answer_call(
    engine: AsyncEngine,
    call: Call,
    replica: str,
    on_streams: Callable[[Sequence[AsyncStream]], object] = lambda streams: None,
) -> AsyncGenerator[Answer, None]:
    """Accepted or Refused, then News until all completions have ended, at least every second. Leaving the generator aborts
    the call. `on_streams` gets its streams when it has been accepted."""
    adding = asyncio.ensure_future(engine.add_all(call.requests))
    streams: list[AsyncStream] = []
    try:
        while not (await asyncio.wait({adding}, timeout=ALIVE_S))[0]:
            yield News()
        try:
            streams = adding.result()
        except Exception as error:
            yield Refused(replica, portable(error))
            return
        on_streams(streams)
        yield Accepted(replica)
        async for news in merged(streams):
            yield news
    finally:
        adding.cancel()
        for stream in streams:
            stream.close()


async def merged(streams: Sequence[AsyncStream]) -> AsyncGenerator[News, None]:
    """What the streams bring, as it comes, until all have ended; News without anything when nothing comes for a while."""
    reading = {asyncio.ensure_future(stream.read()): i for i, stream in enumerate(streams)}
    try:
        while reading:
            done, _ = await asyncio.wait(reading, timeout=ALIVE_S, return_when=asyncio.FIRST_COMPLETED)
            pieces: list[StreamPiece] = []
            ends: list[Ended] = []
            for task in done:
                i = reading.pop(task)
                error = task.exception()
                if error is None and task.result():
                    pieces += [replace(piece, index=i) for piece in task.result()]
                    reading[asyncio.ensure_future(streams[i].read())] = i
                else:
                    ends.append(_ended(i, streams[i], error))
            yield News(pieces, ends)
    finally:
        for task in reading:
            task.cancel()


def _ended(index: int, stream: AsyncStream, error: BaseException | None) -> Ended:
    final = stream.final
    error = error if final is None else final.error
    drafts = (0, 0) if final is None else (final.drafted_tokens, final.accepted_tokens)
    return Ended(index, *drafts, None if error is None else portable(error))


def portable(error: BaseException) -> Exception:
    """The error, or what is left of it in another process."""
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = None
    return copy if isinstance(copy, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
