"""Replica: an engine of the cluster, as an actor of Serve. It gives tokens to doors and tells them what its tree holds."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from ray import serve

from nanoinfer.cache.block_events import EventBatch
from nanoinfer.cluster.policy import ReplicaLoad, load_of
from nanoinfer.cluster.ray_runtime import quiet_logs
from nanoinfer.cluster.serve.answering import Leases, answer_call
from nanoinfer.cluster.serve.messages import Addressed, Answer, Call, Description, Since, Told
from nanoinfer.cluster.serve.settings import ReplicaSettings
from nanoinfer.engine.engine import Engine
from nanoinfer.frontends.async_engine import AsyncEngine
from nanoinfer.frontends.async_stream import AsyncStream

KEPT_BATCHES = 1024
TELL_EVERY_S, TELL_AT_LEAST_S = 0.02, 1.0  # at most and at least so often, each door is told what has changed
NOTHING = ReplicaLoad(0, 0, 0)
STUCK_S = 300.0  # an engine whose step takes longer is taken for broken


class Replica:
    """One engine. Doors call `generate`; the rest is for one replica by name (see FleetRouter)."""

    def __init__(self, settings: ReplicaSettings):
        self.settings, self.name = settings, serve.get_replica_context().replica_id.unique_id
        quiet_logs()
        self.llm = settings.load()
        self.costs = settings.measure(self.llm)
        self.engine = AsyncEngine(self.llm)
        self._leases = Leases(settings.silence_s)
        self._calls: dict[str, list[AsyncStream]] = {}
        self._doors: dict[int, str] = {}  # by the engine's id of a request: who has sent it
        self._loop: asyncio.AbstractEventLoop | None = None
        self._feed = self.engine.engine.block_feed(settings.event_block_size)
        self._batches: deque[EventBatch] = deque(maxlen=KEPT_BATCHES)
        self._taken = 0  # the number of the next batch to take from the feed; only the engine's thread uses it
        self._next = 0  # and of the one after those in `_batches`
        self._news = asyncio.Event()
        self._load, self._loads = NOTHING, dict[str, ReplicaLoad]()  # in all, and by door: what others have sent
        self.engine.after_step = self._after_step

    # --- for any door -------------------------------------------------------------------------------------------------

    async def generate(self, call: Call) -> AsyncGenerator[Answer, None]:
        """As `answer_call`. The call is also aborted when its door has died."""
        calls, streams = self._calls, list[AsyncStream]()

        def accepted(added: Sequence[AsyncStream]) -> None:
            streams[:] = added
            calls[call.call_id] = streams
            self._doors.update(dict.fromkeys([stream.request_id for stream in streams], call.door))

        answers = answer_call(self.engine, call, self.name, accepted)
        try:
            async with aclosing(answers):
                async for answer in answers:
                    if self._leases.is_dead(call.door):
                        return
                    yield answer
        finally:
            for stream in streams:
                self._doors.pop(stream.request_id, None)
            if calls.get(call.call_id) is streams:
                del calls[call.call_id]

    async def describe(self, ask: Addressed) -> Description:
        """The model, for doors."""
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

    # --- for doors that mean this replica -----------------------------------------------------------------------------

    async def tell(self, ask: Addressed) -> Told:
        """What has changed in the tree since then (`ask.content`, a Since), or all that it holds. Waits for something."""
        self._check_address(ask)
        self._leases.see(ask.door)
        self._loop = asyncio.get_running_loop()
        since: Since = ask.content
        await asyncio.sleep(TELL_EVERY_S)  # one message for all that happens meanwhile
        if since.source == self._feed.source and since.seq > self._next:
            await self.engine.visit(self._after_step)  # a snapshot had what has changed between steps
        elif since.source == self._feed.source and since.seq == self._next:
            try:
                await asyncio.wait_for(self._news.wait(), TELL_AT_LEAST_S)
            except TimeoutError:
                await self.engine.visit(self._after_step)  # what changed between steps
        first = self._next - len(self._batches)
        if since.source != self._feed.source or not first <= since.seq <= self._next:
            snapshot = await asyncio.to_thread(self._feed.snapshot)
            return Told(snapshot=snapshot, load=self._loads.get(ask.door, NOTHING))
        return Told(list(self._batches)[since.seq - first :], load=self._loads.get(ask.door, NOTHING))

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

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Serve, for QueuedTokens."""
        return {"queued_tokens": float(self._load.queued_tokens)}

    async def __del__(self) -> None:
        await self.engine.shutdown()
        await asyncio.to_thread(self.llm.shutdown)

    # --- in the engine's thread ---------------------------------------------------------------------------------------

    def _after_step(self, engine: Engine) -> None:
        batches = self._feed.since(self._taken)
        self._taken = self._feed.snapshot().seq if batches is None else self._taken + len(batches)
        doors = self._doors  # a request that was queued just now may not be there yet, and counts for nobody
        loads = {
            door: load_of(engine, lambda request_id, door=door: doors.get(request_id, door) != door)  # type: ignore[misc]
            for door in self._leases.doors
        }
        note = partial(self._note, load_of(engine), loads, batches, self._taken)
        if self._loop is None:  # nobody has asked yet
            note()
        else:
            self._loop.call_soon_threadsafe(note)

    def _note(
        self, load: ReplicaLoad, loads: dict[str, ReplicaLoad], batches: list[EventBatch] | None, following: int
    ) -> None:
        is_news = following != self._next or idle(loads) != idle(self._loads)
        self._load, self._loads = load, loads
        if batches is None:
            self._batches.clear()
        if following != self._next:
            self._batches.extend(batches or ())
            self._next = following
        if is_news:
            self._news.set()
            self._news = asyncio.Event()


def idle(loads: dict[str, ReplicaLoad]) -> set[str]:
    """The doors for which others have sent nothing."""
    return {door for door, load in loads.items() if load == NOTHING}
