"""AdapterTurns: which waiting requests have their adapter on the device; FetchTurns: and their K/V in memory."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nanoinfer.adapters.adapter import Adapter
from nanoinfer.adapters.pool import AdapterPool
from nanoinfer.requests.req import Req

if TYPE_CHECKING:
    from nanoinfer.cache.storeys.disk import DiskStorey


class AdapterTurns:
    """Asks `pool` for the adapters of requests that are next, as far as those in use leave room for them."""

    def __init__(self, pool: AdapterPool | None):
        self._pool = pool
        self._in_use: set[Adapter | None] = set()

    @property
    def fetching(self) -> bool:
        """True while an adapter is on its way to the device."""
        return self._pool is not None and self._pool.fetching

    def begin(self, running: Iterable[Req]) -> None:
        """Begin a round of admission: the adapters of running requests stay."""
        self._in_use = {req.adapter for req in running}

    def has(self, req: Req) -> bool:
        """Whether what `req` needs to be computed with is on the device; if not, it will be."""
        if req.adapter is None:
            return True
        assert self._pool is not None
        return self._pool.obtain(req.adapter, self._in_use)

    def use(self, req: Req) -> None:
        """`req` is admitted: its adapter stays."""
        self._in_use.add(req.adapter)

    def wait(self) -> bool:
        """Wait until an adapter has come, or could not come; False if none is on its way."""
        return self._pool is not None and self._pool.wait()

    def failure(self, waiting: Iterable[Req]) -> tuple[list[Req], BaseException] | None:
        """The waiting requests whose adapter could not be fetched, and why; None if there are none."""
        while self._pool is not None and self._pool.fetching and (failure := self._pool.take_failure()) is not None:
            adapter, error = failure
            if reqs := [req for req in waiting if req.adapter is adapter]:
                return reqs, error
        return None


class FetchTurns(AdapterTurns):
    """A request whose prefix is in files waits until it has been read, and requests behind it may go first meanwhile: as it
    is with adapters."""

    def __init__(self, pool: AdapterPool | None, disk: "DiskStorey"):
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
