"""What the driver needs from routers and from replicas. The exact simulation and the block-level one each have their
own."""

from collections.abc import Callable
from typing import Protocol

from nanoinfer.cluster.simulate.request import SimRequest


class Router(Protocol):
    """Chooses replicas. Several may stand side by side; each knows only what it is told."""

    def prepare(self, request: SimRequest) -> None:
        """Make what it needs of the request, before the time of its choice is taken."""

    def choose(self, request: SimRequest) -> int:
        """The number of the replica that gets this request, which counts as sent from now on."""

    def first_token(self, request: SimRequest) -> None:
        """A request that this router sent has its first token."""

    def end(self, request: SimRequest) -> None:
        """A request that this router sent has ended."""


class SimulatedReplica(Protocol):
    """Serves requests. It tells of first tokens and ends by the functions that it was made with."""

    busy_seconds: float

    def submit(self, request: SimRequest) -> None:
        """Queue a request now."""

    @property
    def open_requests(self) -> int:
        """How many requests have not ended."""


Told = Callable[[SimRequest], object]
