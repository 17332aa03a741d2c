"""Leases: a replica forgets the calls of a door that has died, since nobody will read their answers."""

import time
from collections.abc import Callable


class Leases:
    """Doors show that they live by asking for news of the tree. One that has done so before and is silent for
    `silence_s` is dead; one that never asked (it does not want such news) is taken to live."""

    def __init__(self, silence_s: float, clock: Callable[[], float] = time.monotonic):
        self._silence_s, self._clock = silence_s, clock
        self._seen: dict[str, float] = {}

    def see(self, door: str) -> None:
        """The door lives."""
        self._seen[door] = self._clock()

    @property
    def doors(self) -> list[str]:
        """All that have asked, and are not dead."""
        return [door for door in list(self._seen) if not self.is_dead(door)]

    def is_dead(self, door: str) -> bool:
        """True if nobody will read what the door asked for."""
        seen = self._seen.get(door)
        return seen is not None and self._clock() - seen > self._silence_s
