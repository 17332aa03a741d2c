"""ServeReplicas: how a door reaches the replicas, by a handle of Serve; NewsReader: hears what their trees hold."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

from ray import serve

from nanoinfer.cluster.serve.fleet import Fleet
from nanoinfer.cluster.serve.messages import Addressed, Call, Description, Since, Told

logger = logging.getLogger(__name__)
RETRY_S = 0.2
T = TypeVar("T")


class ServeReplicas:
    """Calls go where Serve's router sends them (see FleetRouter); what is addressed goes to one replica by its name.

    `fleet`: what the router knows; None with one of Ray's own routers.
    """

    def __init__(self, application: str, fleet: Fleet | None):
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

    def note_first_token(self, call_id: str, cached_tokens: int) -> None:
        """Pass it on to the fleet."""
        if self.fleet is not None:
            self.fleet.note_first_token(call_id, cached_tokens)

    def note_end(self, call_id: str, output_tokens: int | None = None) -> str | None:
        """Pass it on to the fleet."""
        return None if self.fleet is None else self.fleet.note_end(call_id, output_tokens)


def start_task(coroutine: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
    """A task that does not belong to the request during which it begins. Serve tells calls of one request apart by an id
    that it finds in the context, and a request here may have many calls at once."""
    return asyncio.get_running_loop().create_task(coroutine(), context=Context())


class NewsReader:
    """One task per replica, as long as Serve says that there is one. `timeout_s`: for one answer."""

    def __init__(self, door: str, fleet: Fleet, replicas: ServeReplicas, timeout_s: float):
        self._door, self._fleet, self._replicas, self._timeout_s = door, fleet, replicas, timeout_s
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
        since = Since()
        while True:
            try:
                told: Told = await self._replicas.ask("tell", Addressed(replica, self._door, since), self._timeout_s)
                since = self._take(replica, since, told)
            except ValueError:  # what it tells cannot be used, for example blocks of another size
                logger.exception("%s tells what the router cannot use", replica)
                await asyncio.sleep(self._timeout_s / 2)  # and still asks: a door that is silent counts as dead
                since = Since()
            except Exception as error:  # it is gone, or will answer again; Serve says which
                logger.info("%s tells nothing: %s", replica, type(error).__name__)
                await asyncio.sleep(RETRY_S)
                since = Since()

    def _take(self, replica: str, since: Since, told: Told) -> Since:
        """Pass on what a replica has told; returns what to ask for next."""
        if told.load is not None:
            self._fleet.note_load(replica, told.load)
        if told.snapshot is not None:
            self._fleet.note_snapshot(replica, told.snapshot)
            return Since(told.snapshot.source, told.snapshot.seq)
        for batch in told.batches:
            if not self._fleet.note_events(replica, batch):
                return Since()  # some are missing: everything again
        return Since(since.source, since.seq + len(told.batches))
