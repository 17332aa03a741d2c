"""NewsReader: keeps asking all replicas what their trees hold, and tells the fleet."""

import asyncio
import logging

from nanoinfer.cluster.serve.fleet import Fleet
from nanoinfer.cluster.serve.links import ServeReplicas, start_task
from nanoinfer.cluster.serve.messages import Addressed, Since, Told

logger = logging.getLogger(__name__)
RETRY_S = 0.2


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
