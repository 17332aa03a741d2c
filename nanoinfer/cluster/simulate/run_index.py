"""RunIndex: which replicas hold which runs (see RunCache): what routers of large simulations know."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from nanoinfer.cluster.simulate.clock import Clock
from nanoinfer.cluster.simulate.run_cache import Key

FEW = 24  # up to so many holders are a set; more are a mask, which numpy looks through at once


class RunIndex:
    """For each run, the replicas that hold all of it. `only`: keys of which it keeps account; None: of all."""

    def __init__(self, replicas: int, only: set[Key] | None = None):
        self.replicas, self.only = replicas, only
        self._few: dict[Key, set[int]] = {}
        self._many: dict[Key, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self._few) + len(self._many)

    def note(self, replica: int, key: Key, is_held: bool) -> None:
        """A replica holds all of this run from now on, or no longer."""
        if self.only is not None and key not in self.only:
            return
        mask = self._many.get(key)
        if mask is not None:
            mask[replica] = is_held
            return
        holders = self._few.get(key)
        if is_held:
            if holders is None:
                holders = self._few[key] = set()
            holders.add(replica)
            if len(holders) > FEW:
                mask = self._many[key] = np.zeros(self.replicas, dtype=bool)
                mask[list(self._few.pop(key))] = True
        elif holders is not None:
            holders.discard(replica)
            if not holders:
                del self._few[key]

    def least_loaded(self, key: Key, load: np.ndarray) -> int | None:
        """The one with the least load among the replicas that hold this run; None if there is none."""
        mask = self._many.get(key)
        if mask is not None:
            best = int(np.where(mask, load, np.inf).argmin())
            return best if mask[best] else None
        holders = self._few.get(key)
        return min(holders, key=load.__getitem__) if holders else None


class Pending:
    """Runs that are on their way: computed for a request that was sent, and not reported by its replica yet."""

    def __init__(self) -> None:
        self._counts: defaultdict[Key, dict[int, int]] = defaultdict(dict)

    def add(self, replica: int, keys: Iterable[Key]) -> None:
        """A request with these runs was sent to a replica."""
        for key in keys:
            counts = self._counts[key]
            counts[replica] = counts.get(replica, 0) + 1

    def remove(self, replica: int, keys: Iterable[Key]) -> None:
        """Undo one `add`."""
        for key in keys:
            counts = self._counts[key]
            counts[replica] -= 1
            if not counts[replica]:
                del counts[replica]
            if not counts:
                del self._counts[key]

    def least_loaded(self, key: Key, load: np.ndarray) -> int | None:
        """As RunIndex's."""
        counts = self._counts.get(key)
        return min(counts, key=load.__getitem__) if counts else None


class RunReporter:
    """Tells indexes what a replica's RunCache holds, a while after it changed."""

    def __init__(self, clock: Clock, delay_s: float, replica: int, indexes: Sequence[RunIndex]):
        self._clock, self._delay_s, self._replica, self._indexes = clock, delay_s, replica, indexes
        self._changed: dict[Key, bool] = {}

    def __call__(self, key: Key, is_whole: bool) -> None:
        """Note a change. All that change before the next report are told with it."""
        if not self._changed:
            self._clock.after(self._delay_s, self._tell)
        self._changed[key] = is_whole

    def _tell(self) -> None:
        changed, self._changed = self._changed, {}
        for index in self._indexes:
            for key, is_whole in changed.items():
                index.note(self._replica, key, is_whole)
