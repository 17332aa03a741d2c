"""BasePolicy: what all policies keep: the replicas, and which request is at which of them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from nanoinfer.cache.block_events import EventBatch, Snapshot
from nanoinfer.cluster.policy import ReplicaLoad, RoutedRequest, check_count, check_name
from nanoinfer.errors import NoReplicaError, UnknownReplicaError


@dataclass(slots=True)
class Sent:
    """A request that has been sent to `replica` (None: that one is gone) and has not ended."""

    replica: str | None
    is_running: bool = False  # its prompt has been computed


class BasePolicy(ABC):
    """A Policy that has to say only which replica it prefers (`_pick`). Hears of events and loads, and ignores them."""

    def __init__(self) -> None:
        self._sent: dict[str, Sent] = {}  # by request id
        self._at: dict[
            str, set[str]
        ] = {}  # replica → the ids of its requests; in the order in which replicas were added

    @property
    def replicas(self) -> list[str]:
        """Their names, oldest first."""
        return list(self._at)

    def in_flight(self, replica: str) -> int:
        """How many requests it has, as far as this router knows."""
        self._check_replica(replica)
        return len(self._at[replica])

    def add_replica(self, replica: str) -> None:
        """As in Policy."""
        check_name("replica", replica)
        if replica in self._at:
            raise ValueError(f"replica={replica!r}: has been added already")
        self._at[replica] = set()

    def remove_replica(self, replica: str) -> None:
        """As in Policy."""
        self._check_replica(replica)
        for request_id in self._at.pop(replica):
            self._sent[request_id].replica = None

    def choose(self, request: RoutedRequest) -> str:
        """As in Policy."""
        before = self._sent.get(request.request_id)
        if before is not None and before.replica is not None:
            raise ValueError(f"request_id={request.request_id!r}: is at replica {before.replica!r}; note its end first")
        if not self._at:
            raise NoReplicaError(f"request_id={request.request_id!r}: there is no replica to send it to")
        replica = self._pick(request)
        self._sent[request.request_id] = Sent(replica)
        self._at[replica].add(request.request_id)
        return replica

    def note_first_token(self, request_id: str, cached_tokens: int | None = None) -> None:
        """As in Policy. A second call for the same request does nothing."""
        sent = self._check_sent(request_id)
        if cached_tokens is not None:
            check_count("cached_tokens", cached_tokens, least=0)
        if not sent.is_running and sent.replica is not None:
            sent.is_running = True
            self._started(request_id, sent.replica, cached_tokens)

    def note_end(self, request_id: str, output_tokens: int | None = None) -> None:
        """As in Policy."""
        sent = self._check_sent(request_id)
        if output_tokens is not None:
            check_count("output_tokens", output_tokens, least=0)
        del self._sent[request_id]
        if sent.replica is not None:
            self._at[sent.replica].remove(request_id)
        self._ended(request_id, sent, output_tokens)

    def note_events(self, replica: str, batch: EventBatch) -> bool:
        """As in Policy. Without an index, nothing can be missing."""
        self._check_replica(replica)
        return True

    def note_snapshot(self, replica: str, snapshot: Snapshot) -> None:
        """As in Policy."""
        self._check_replica(replica)

    def note_load(self, replica: str, load: ReplicaLoad) -> None:
        """As in Policy."""
        self._check_replica(replica)

    # --- for subclasses --------------------------------------------------------------------------------------------

    @abstractmethod
    def _pick(self, request: RoutedRequest) -> str:
        """One of `replicas`, of which there is at least one."""

    def _started(self, request_id: str, replica: str, cached_tokens: int | None) -> None:  # noqa: B027 - may do nothing
        """Its replica has computed the prompt."""

    def _ended(self, request_id: str, sent: Sent, output_tokens: int | None) -> None:  # noqa: B027 - may do nothing
        """The request is over."""

    def _check_replica(self, replica: str) -> None:
        if replica not in self._at:
            there = ", ".join(map(repr, self._at)) or "none"
            raise UnknownReplicaError(f"replica={replica!r}: is not among the replicas of this router: {there}")

    def _check_sent(self, request_id: str) -> Sent:
        if request_id not in self._sent:
            raise ValueError(f"request_id={request_id!r}: no replica was chosen for it, or it has ended")
        return self._sent[request_id]
