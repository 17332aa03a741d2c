"""PrefetchGate: which waiting requests have their adapter on the device, and their K/V in memory."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nanoinfer.model.lora.adapter import Adapter
from nanoinfer.model.lora.pool import AdapterPool
from nanoinfer.requests.req import Req

if TYPE_CHECKING:
    from nanoinfer.cache.tiers.disk import DiskTier


class PrefetchGate:
    """Asks `pool` for the adapters of requests that are next, as far as those in use leave room for them, and `disk`, if
    there is one, for their K/V. A request waits until both are there; requests behind it may go first meanwhile."""

    def __init__(self, pool: AdapterPool | None):
        self._pool = pool
        self.disk: DiskTier | None = None
        self._in_use: set[Adapter | None] = set()

    @property
    def fetching(self) -> bool:
        """True while an adapter or K/V is on its way."""
        return (self._pool is not None and self._pool.fetching) or (self.disk is not None and self.disk.fetching)

    def begin(self, running: Iterable[Req]) -> None:
        """Begin a round of admission: the adapters of running requests stay. K/V that has come so far is used; what comes
        during the round is for the next one, or else requests that had their turn already would not be asked again."""
        self._in_use = {req.adapter for req in running}
        if self.disk is not None:
            self.disk.complete_reads()

    def has(self, req: Req) -> bool:
        """Whether what `req` needs is there; if not, it will be, or what has to be computed again will be known.

        K/V comes first: an adapter takes its slot only when the request can be computed, or others would go without."""
        if self.disk is not None and not self.disk.is_ready(req):
            return False
        if req.adapter is None:
            return True
        assert self._pool is not None
        return self._pool.obtain(req.adapter, self._in_use)

    def use(self, req: Req) -> None:
        """`req` is admitted: its adapter stays."""
        self._in_use.add(req.adapter)

    def wait(self) -> bool:
        """Wait until an adapter has come, or could not come, or else a moment for K/V; False if nothing has come."""
        return (self._pool is not None and self._pool.wait()) or (self.disk is not None and self.disk.wait())

    def failure(self, waiting: Iterable[Req]) -> tuple[list[Req], BaseException] | None:
        """The waiting requests whose adapter could not be fetched, and why; None if there are none."""
        while self._pool is not None and self._pool.fetching and (failure := self._pool.take_failure()) is not None:
            adapter, error = failure
            if reqs := [req for req in waiting if req.adapter is adapter]:
                return reqs, error
        return None
