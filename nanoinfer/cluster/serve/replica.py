"""Replica: an engine of the cluster, as an actor of Serve. It gives tokens to ingresses and tells them what its tree
holds."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any

from ray import serve

from nanoinfer.async_llm import AsyncEngine
from nanoinfer.cluster.ray_runtime import quiet_logs
from nanoinfer.cluster.serve.fleet import queued_tokens
from nanoinfer.cluster.serve.protocol import Addressed, Answer, Call, Description, TreeUpdate, answer_call
from nanoinfer.cluster.serve.settings import ReplicaSettings
from nanoinfer.engine.async_stream import AsyncStream
from nanoinfer.engine.engine import Engine

UPDATE_EVERY_S, UPDATE_AT_LEAST_S = 0.02, 1.0  # at most and at least so often, each ingress is told what has changed
STUCK_S = 300.0  # an engine whose step takes longer is taken for broken


class Replica:
    """One engine. Ingresses call `generate`; the rest is for one replica by name (see FleetRouter)."""

    def __init__(self, settings: ReplicaSettings):
        self.settings, self.name = settings, serve.get_replica_context().replica_id.unique_id
        quiet_logs()
        self.llm = settings.load()
        self.costs = settings.measure(self.llm)
        self.engine = AsyncEngine(self.llm)
        self._seen: dict[str, float] = {}  # when each ingress has last asked what the tree holds: it was alive then
        self._calls: dict[str, Sequence[AsyncStream]] = {}
        self._feed = self.engine.engine.block_feed(settings.event_block_size)

    # --- for any ingress -------------------------------------------------------------------------------------------------

    async def generate(self, call: Call) -> AsyncGenerator[Answer, None]:
        """As `answer_call`. The call is also aborted when its ingress has died: one that asked for news, and is silent
        now."""
        streams: list[AsyncStream] = []

        def accepted(added: Sequence[AsyncStream]) -> None:
            streams.extend(added)
            self._calls[call.call_id] = streams

        answers = answer_call(self.engine, call, self.name, accepted)
        try:
            async with aclosing(answers):
                async for answer in answers:
                    now = time.monotonic()
                    if now - self._seen.get(call.ingress, now) > self.settings.silence_s:
                        return
                    yield answer
        finally:
            if self._calls.get(call.call_id) is streams:  # it may have come back meanwhile
                del self._calls[call.call_id]

    async def describe(self, ask: Addressed) -> Description:
        """The model, for ingresses."""
        engine, model = self.engine.engine, getattr(self.llm, "model", None)
        return Description(
            self.settings.model,
            None if model is None else str(model.path),
            engine.config,
            engine.builder.vocab_size,
            tuple(engine.builder.eos_token_ids),
            tuple(engine.adapters),
            min(engine.config.max_context_len, engine.cache.token_to_kv_pool.size + 1),
            self.costs,
            dict(engine.builder.sampling_defaults),
        )

    # --- for ingresses that mean this replica -----------------------------------------------------------------------------

    async def tree_update(self, ask: Addressed) -> TreeUpdate:
        """What has changed in the tree since a batch (`ask.content`: its source and number), or all that the tree holds.
        Waits for something, but not for long."""
        self._check_address(ask)
        self._seen[ask.ingress] = time.monotonic()
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:  # in the engine's thread
            loop.call_soon_threadsafe(news.set)

        self._feed.listeners.append(wake)
        try:
            await asyncio.sleep(UPDATE_EVERY_S)  # one message for all that happens meanwhile
            update = await self.engine.visit(lambda _: self._since(*ask.content))
            if not update.batches and update.snapshot is None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(news.wait(), UPDATE_AT_LEAST_S)
                update = await self.engine.visit(lambda _: self._since(*ask.content))
            return update
        finally:
            self._feed.listeners.remove(wake)

    def _since(self, source: str, seq: int) -> TreeUpdate:
        batches = self._feed.since(seq) if source == self._feed.source else None
        return TreeUpdate(snapshot=self._feed.snapshot()) if batches is None else TreeUpdate(batches)

    async def hold(self, ask: Addressed) -> None:
        """Pause the call (`ask.content`: its id and True), or let it go on (False): its reader is behind, or no more."""
        self._check_address(ask)
        call_id, hold = ask.content
        for stream in self._calls.get(call_id, ()):
            try:
                await (self.engine.pause if hold else self.engine.resume)(stream.request_id)
            except ValueError:
                continue  # this completion has ended

    async def visit(self, ask: Addressed) -> Any:
        """As `AsyncEngine.visit`; `ask.content` is the function."""
        self._check_address(ask)
        function: Callable[[Engine], Any] = ask.content
        return await self.engine.visit(function)

    def _check_address(self, ask: Addressed) -> None:
        if ask.replica != self.name:
            raise LookupError(f"replica={ask.replica!r}: is gone; this one is {self.name!r}")

    # --- for Serve ----------------------------------------------------------------------------------------------------

    async def check_health(self) -> None:
        """Called by Serve, which replaces a replica that raises."""
        if self.engine.is_closed:
            raise RuntimeError("the engine's thread has ended")
        await asyncio.wait_for(self.engine.visit(lambda engine: None), STUCK_S)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Serve, for QueuedTokens."""
        return {"queued_tokens": float(await self.engine.visit(queued_tokens))}

    async def __del__(self) -> None:
        await self.engine.shutdown()
        await asyncio.to_thread(self.llm.shutdown)
