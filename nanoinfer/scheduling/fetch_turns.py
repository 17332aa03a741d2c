"""FetchTurns: AdapterTurns for an engine with files below its pool: which waiting requests have their K/V in memory."""

from collections.abc import Iterable

from nanoinfer.adapters.pool import AdapterPool
from nanoinfer.cache.storeys.disk import DiskStorey
from nanoinfer.requests.req import Req
from nanoinfer.scheduling.adapter_turns import AdapterTurns


class FetchTurns(AdapterTurns):
    """A request whose prefix is in files waits until it has been read, and requests behind it may go first meanwhile: as it
    is with adapters."""

    def __init__(self, pool: AdapterPool | None, disk: DiskStorey):
        super().__init__(pool)
        self._disk = disk

    @property
    def fetching(self) -> bool:
        """True while an adapter or K/V is on its way."""
        return super().fetching or self._disk.fetching

    def begin(self, running: Iterable[Req]) -> None:
        """Begin a round of admission with what has come so far. What comes during it is for the next one: or else requests
        that have had their turn already would not be considered again."""
        super().begin(running)
        self._disk.land()

    def has(self, req: Req) -> bool:
        """Whether what `req` needs is there; if not, it will be, or what has to be computed again will be known.

        K/V comes first: an adapter takes its place only when the request can be computed, or others would go without."""
        return self._disk.is_ready(req) and super().has(req)

    def wait(self) -> bool:
        """Wait until an adapter has come, or else a moment for K/V; False if nothing has come."""
        return super().wait() or self._disk.wait()
