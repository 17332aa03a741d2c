"""answer_call: how a replica answers a call, with an AsyncEngine and without Ray; Leases: which doors still read."""

import asyncio
import pickle
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace

from nanoinfer.cluster.serve.messages import Accepted, Answer, Call, Ended, News, Refused
from nanoinfer.frontends.async_engine import AsyncEngine
from nanoinfer.frontends.async_stream import AsyncStream
from nanoinfer.requests.stream_pieces import StreamPiece

ALIVE_S = 1.0  # a call hears from its replica at least this often


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


class Leases:
    """A replica forgets the calls of a door that has died. Doors show that they live by asking for news of the tree. One
    that has done so before and is silent for `silence_s` is dead; one that never asked (it does not want such news) is
    taken to live."""

    def __init__(self, silence_s: float, clock: Callable[[], float] = time.monotonic):
        self._silence_s, self._clock = silence_s, clock
        self._seen: dict[str, float] = {}

    def see(self, door: str) -> None:
        """The door lives."""
        self._seen[door] = self._clock()

    @property
    def doors(self) -> list[str]:
        """All that have asked, and are not dead."""
        return [door for door in list(self._seen) if not self.is_dead(door)]

    def is_dead(self, door: str) -> bool:
        """True if nobody will read what the door asked for."""
        seen = self._seen.get(door)
        return seen is not None and self._clock() - seen > self._silence_s
