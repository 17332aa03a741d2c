"""Loop: what the engine needs of the thread that owns it, if there is one (see engine_loop.py)."""

from collections.abc import Sequence
from typing import Protocol

from nanoinfer.requests.outputs import RequestOutput
from nanoinfer.requests.request_group import Update, made


class Loop(Protocol):
    """What owns an engine that requests reach through doors: an EngineLoop. All of it is called during a turn."""

    is_stepping: bool

    def has_work(self) -> bool:
        """True while a request of a door has something to do."""

    def request_ids(self) -> set[int]:
        """The requests of doors that have not ended. May be called at any time."""

    def deliver(self, updates: Sequence[Update]) -> list[RequestOutput]:
        """Hand out updates to the doors of their requests; returns the outputs of requests that were added by hand."""

    def wake(self) -> None:
        """Have it look whether there is work. May be called at any time."""


class NoLoop:
    """Of an engine that is only driven by hand."""

    is_stepping = False

    def has_work(self) -> bool:
        return False

    def request_ids(self) -> set[int]:
        return set()

    def deliver(self, updates: Sequence[Update]) -> list[RequestOutput]:
        return [made(update) for update in updates]

    def wake(self) -> None: ...
