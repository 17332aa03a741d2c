"""RemoteEngine: what a server takes for an engine, though the engines are elsewhere (see `server/service.py`)."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import Context
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from ray import serve

from nanoinfer.cluster.serve.fleet import Fleet
from nanoinfer.cluster.serve.protocol import Addressed, Call, Description, TreeUpdate
from nanoinfer.cluster.serve.remote_call import RemoteCall
from nanoinfer.cluster.serve.settings import ClusterSettings
from nanoinfer.config import EngineConfig
from nanoinfer.engine.async_stream import AsyncStream, Delivery
from nanoinfer.engine.engine import Engine
from nanoinfer.errors import AdapterError, EngineClosedError, ReplicaLostError
from nanoinfer.requests.request import Request
from nanoinfer.requests.request_builder import RequestBuilder
from nanoinfer.requests.tokenizer import Tokenizer
from nanoinfer.server.service import Served

logger = logging.getLogger(__name__)
T = TypeVar("T")
VISIT_S = 10.0  # for a replica to answer about itself
RETRY_S = 0.2  # until it is asked again
NO_LOADING = "adapters of a cluster are given when it is deployed (serve --replicas N --adapter NAME=PATH)"


class RemoteModel:
    """The model that the replicas serve, as far as an ingress knows it."""

    def __init__(self, description: Description):
        tokenizer = None if description.path is None else Tokenizer.from_pretrained(description.path)
        defaults = description.sampling_defaults
        self.builder = RequestBuilder(
            description.vocab_size, description.end_token_ids, tokenizer, sampling_defaults=defaults
        )
        self.config: EngineConfig = description.config
        self.adapters: Mapping[str, Any] = dict.fromkeys(description.adapters)

    def prepare(self, request: Request) -> Request:
        """Check a request. Its grammar is compiled at the replica."""
        self.builder.check(request, self.config.max_context_len)
        return request


class ServeReplicas:
    """How an ingress reaches the replicas, by a handle of Serve. Calls go where Serve's router sends them (see
    FleetRouter); what is addressed goes to one replica by its name. `fleet`: what the router knows."""

    def __init__(self, application: str, fleet: Fleet):
        self.fleet = fleet
        self._handle = serve.get_deployment_handle("Replica", app_name=application)

    def generate(self, call: Call) -> Any:
        """Send a call: its answers, which can be iterated over and cancelled."""
        return self._handle.options(method_name="generate", stream=True).remote(call)

    async def ask(self, method: str, message: Addressed, timeout_s: float) -> Any:
        """What a method of one replica returns. TimeoutError, or what Ray and Serve raise when it is gone."""

        async def call() -> Any:
            return await self._handle.options(method_name=method).remote(message)

        return await asyncio.wait_for(start_task(call), timeout_s)

    async def describe(self, timeout_s: float) -> Description:
        """The model, told by any replica."""
        answer: Description = await self.ask("describe", Addressed(""), timeout_s)
        return answer


def start_task(coroutine: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
    """A task that does not belong to the request during which it begins. Serve tells calls of one request apart by an id
    that it finds in the context, and a request here may have many calls at once."""
    return asyncio.get_running_loop().create_task(coroutine(), context=Context())


class NewsReader:
    """Hears what the replicas' trees hold: one task per replica, as long as Serve says that there is one. `timeout_s`: for
    one answer."""

    def __init__(self, ingress: str, replicas: ServeReplicas, timeout_s: float):
        self._ingress, self._fleet, self._replicas, self._timeout_s = ingress, replicas.fleet, replicas, timeout_s
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Begin, in the running event loop."""
        loop = asyncio.get_running_loop()
        self._fleet.on_change = lambda: loop.call_soon_threadsafe(self._follow)
        self._follow()

    def stop(self) -> None:
        """End all tasks."""
        self._fleet.on_change = None
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()

    def _follow(self) -> None:
        now = self._fleet.replicas
        for gone in set(self._tasks) - now:
            self._tasks.pop(gone).cancel()
        for replica in now - set(self._tasks):
            self._tasks[replica] = start_task(lambda replica=replica: self._read(replica))  # type: ignore[misc]

    async def _read(self, replica: str) -> None:
        source, seq = "", 0  # of the batch that comes next; source "": a snapshot
        while True:
            try:
                ask = Addressed(replica, self._ingress, (source, seq))
                update: TreeUpdate = await self._replicas.ask("tree_update", ask, self._timeout_s)
                if update.snapshot is not None:
                    self._fleet.note_snapshot(replica, update.snapshot)
                    source, seq = update.snapshot.source, update.snapshot.seq
                for batch in update.batches:
                    if not self._fleet.note_events(replica, batch):
                        source = ""  # some are missing: everything again
                        break
                    seq = batch.seq + 1
            except Exception as error:  # it is gone, or will answer again; Serve says which
                logger.info("%s tells nothing: %s: %s", replica, type(error).__name__, error)
                await asyncio.sleep(RETRY_S)
                source = ""


class RemoteEngine:
    """The replicas of a cluster, as one engine: it is one end of each RemoteCall. All methods belong to one event loop."""

    def __init__(self, model: RemoteModel, settings: ClusterSettings, replicas: ServeReplicas):
        self._model, self._settings, self._replicas = model, settings, replicas
        self._ingress = uuid4().hex
        self._ids = count()
        self._tasks: dict[Delivery, asyncio.Task[None]] = {}
        self._calls: dict[Delivery, RemoteCall] = {}
        self._holding: set[Delivery] = set()  # those whose replicas are being told to hold them, or to go on
        self._news: NewsReader | None = None
        self.is_closed = False

    def _start(self) -> None:
        """Listen to the replicas, from the first request on."""
        if self._news is None:
            self._news = NewsReader(self._ingress, self._replicas, self._settings.silence_s)
            self._news.start()

    async def add_prepared(self, groups: Sequence[Request], max_unread: int | None = None) -> list[AsyncStream]:
        """As `add_all`, for what `RemoteModel.prepare` has returned."""
        return await self.add_all(groups, max_unread)

    async def add_all(self, requests: Sequence[Request], max_unread: int | None = None) -> list[AsyncStream]:
        """As `AsyncEngine.add_all`; ReplicaLostError if no replica can be reached."""
        if self.is_closed:
            raise EngineClosedError("this ingress has been closed; it takes no more requests")
        self._start()
        for request in requests:
            self._model.builder.check(request, self._model.config.max_context_len)
        pairs = [self._begin(request, max_unread) for request in requests]
        streams = [AsyncStream(delivery, call.request_id, self._drop) for delivery, call in pairs]
        try:
            await asyncio.gather(*(call.accepted for _, call in pairs))
        except BaseException as error:
            for stream in streams:
                stream.close()
            for _, call in pairs:
                if call.accepted.done() and not call.accepted.cancelled():
                    call.accepted.exception()  # only the first is raised
            if self.is_closed and isinstance(error, asyncio.CancelledError):
                raise EngineClosedError("this ingress was closed before a replica had taken the request") from None
            raise
        return streams

    def _begin(self, request: Request, max_unread: int | None) -> tuple[Delivery, RemoteCall]:
        if request.params.seed is None and not request.params.greedy:
            request = replace(request, params=replace(request.params, seed=secrets.randbits(63)))
        settings = self._settings
        delivery = Delivery(asyncio.get_running_loop(), max_unread, self._hold)
        limits = settings.silence_s, settings.replica_timeout_s, settings.most_moves
        call = RemoteCall(next(self._ids), request, self._ingress, self._replicas, delivery, limits)
        delivery.request_id = call.request_id
        task = start_task(call.run)
        self._tasks[delivery], self._calls[delivery] = task, call
        task.add_done_callback(lambda _: (self._tasks.pop(delivery, None), self._calls.pop(delivery, None)))
        return delivery, call

    def _drop(self, delivery: Delivery, keep_reading: bool) -> None:
        """The stream was closed, or nobody has it any more."""
        if (task := self._tasks.get(delivery)) is not None:
            delivery.loop.call_soon_threadsafe(task.cancel)

    def _hold(self, delivery: Delivery, hold: bool) -> None:
        """The reader is too far behind, or no more."""
        call = self._calls.get(delivery)
        if call is not None and call.replica and delivery not in self._holding:
            self._holding.add(delivery)
            start_task(lambda: self._ask_to_hold(delivery, call))

    async def _ask_to_hold(self, delivery: Delivery, call: RemoteCall) -> None:
        """Have the replica hold the call or go on with it, until it does what the reader needs now."""
        has_answered = False
        while delivery in self._calls and not has_answered:
            replica, hold = call.replica, delivery.is_held
            try:
                await self._replicas.ask("hold", Addressed(replica, self._ingress, (call.call_id, hold)), VISIT_S)
                has_answered = (replica, hold) == (call.replica, delivery.is_held)
            except Exception:  # it is gone, or busy with a long step
                await asyncio.sleep(RETRY_S)
        self._holding.discard(delivery)

    async def load_adapter(self, name: str, path: str | Path) -> Any:
        """AdapterError: replicas that come later would not have it."""
        raise AdapterError(NO_LOADING)

    async def unload_adapter(self, name: str) -> None:
        """AdapterError, as `load_adapter`."""
        raise AdapterError(NO_LOADING)

    async def visit_each(self, function: Callable[[Engine], T]) -> list[T]:
        """`AsyncEngine.visit` at every replica that can be reached. ReplicaLostError if there is none."""
        self._start()
        if not self._replicas.fleet.replicas:  # Serve tells its router with the first call
            await asyncio.gather(self._replicas.describe(VISIT_S), return_exceptions=True)
        names = sorted(self._replicas.fleet.replicas)
        asked = [self._replicas.ask("visit", Addressed(name, self._ingress, function), VISIT_S) for name in names]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found = [answer for answer in answers if not isinstance(answer, BaseException)]
        if not found:
            why = f": {type(answers[0]).__name__}" if answers else ""
            raise ReplicaLostError(f"none of {len(names)} replicas answers{why}")
        return found

    async def shutdown(self) -> None:
        """End all requests. The replicas stay."""
        self.is_closed = True
        if self._news is not None:
            self._news.stop()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class ServedByReplicas(Served):
    """The replicas of a cluster, for `make_app`."""

    def __init__(self, description: Description, settings: ClusterSettings, replicas: ServeReplicas):
        self.name, self.max_tokens = description.name, description.most_tokens
        self.core = RemoteModel(description)
        self._engine = RemoteEngine(self.core, settings, replicas)

    @property
    def engine(self) -> RemoteEngine:
        return self._engine

    async def close(self) -> None:
        await self._engine.shutdown()
