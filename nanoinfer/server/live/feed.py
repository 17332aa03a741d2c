"""Feed: records the engine while somebody watches, and tells all who do."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from nanoinfer.engine.engine import Engine
from nanoinfer.errors import EngineClosedError
from nanoinfer.server.live.recording import News, Recording
from nanoinfer.server.service import Service

logger = logging.getLogger(__name__)
MESSAGES_PER_SECOND = 10
SILENCE_SECONDS = 15.0  # without news; then a comment says that the connection is alive


class Feed:
    """The messages of a recording that begins when the first one watches, and anew when it is full. Without watchers
    nothing is recorded, and no task runs. `about`: what the page must know and what does not change.

    A message is made once for all. Nothing is kept for those who read slowly: they get what they have missed, or if a new
    recording has begun, that one from its beginning. So does whoever comes back after an error.
    """

    def __init__(self, service: Service, about: dict[str, Any]):
        self._service, self._about = service, about
        self._task: asyncio.Task[None] | None = None
        self._messages: list[bytes] = []  # a new list for each recording
        self._news = asyncio.Event()
        self.watchers = 0

    async def stream(self) -> AsyncIterator[bytes]:
        """Everything from the beginning of the recording on, as server-sent events."""
        self.watchers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._record(), name="nanoinfer-live-feed")
        task, messages, seen = self._task, self._messages, 0
        try:
            while self._task is task:
                if messages is not self._messages:
                    messages, seen = self._messages, 0
                if new := messages[seen:]:
                    seen += len(new)
                    yield b"".join(new)
                    continue
                try:
                    async with asyncio.timeout(SILENCE_SECONDS):
                        await self._news.wait()
                except TimeoutError:
                    yield b": nothing new\n\n"
            yield b"event: end\ndata: {}\n\n"
        finally:
            self.watchers -= 1

    async def _record(self) -> None:
        """Record while there are watchers and the server does not end."""
        recording: Recording | None = None

        def take(engine: Engine) -> News:
            nonlocal recording
            if recording is None or recording.is_full:
                if recording is not None:
                    recording.stop()
                recording, self._messages = Recording(engine, self._service.settings.show_prompts, self._about), []
            return recording.take()

        try:
            while self.watchers and not self._service.is_ending.is_set():
                ((requests, events),) = await self._service.engine.visit_each(take)
                if requests or events:
                    assert recording is not None
                    self._messages.append(await asyncio.to_thread(recording.message, requests, events))
                    self._tell()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._service.is_ending.wait(), 1 / MESSAGES_PER_SECOND)
        except EngineClosedError:
            pass
        except Exception:
            logger.exception("the live page's feed failed")
        finally:
            self._task, self._messages = None, []  # whoever comes now begins anew
            self._tell()
            if recording is not None:
                await asyncio.to_thread(recording.stop)  # the engine may outlive its server

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
