"""Blocked: an optimisation that you can skip on a first reading. The scheduler decides the same without it."""

from collections.abc import Sequence

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.requests.req import Req

State = tuple[int, int, int]  # requests that have arrived, requests that have ended, insertions into the tree


class Blocked:
    """Remembers the first request that did not fit, and the engine's state at that time.

    As long as the state is the same, admission would end at the same request again. Checking that needs no look-up in
    the tree.
    """

    def __init__(self, cache: CacheManager):
        self._cache = cache
        self._req: Req | None = None

    def note(self, req: Req, state: State, covered: int) -> None:
        """`req` does not fit. `covered`: tokens of its prefix that other requests have locked anyway, so that they take no
        extra room."""
        self._req, self._noted, self._covered = req, state, covered

    def forget(self) -> None:
        """Something has changed that may let it in."""
        self._req = None

    def still(self, state: State, running: Sequence[Req], ratio: float) -> bool:
        """True when the request still cannot fit. A lower ratio gives more room and needs less."""
        if self._req is None or not running or state != self._noted:
            return False
        promised = sum(self._cache.outstanding_size(req, ratio) for req in running)
        room = self._cache.obtainable_size() - promised
        return self._cache.outstanding_size(self._req, ratio) - self._covered > room
