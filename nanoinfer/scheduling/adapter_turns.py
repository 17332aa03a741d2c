"""AdapterTurns: which waiting requests have their adapter on the device. Without adapters, none has to wait."""

from collections.abc import Iterable

from nanoinfer.adapters.adapter import Adapter
from nanoinfer.adapters.pool import AdapterPool
from nanoinfer.requests.req import Req


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
