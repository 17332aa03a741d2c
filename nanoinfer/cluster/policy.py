"""Policy: what all routers do, whatever they decide by: they keep the replicas, and which request is at which of them; and
what a router is told."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from math import inf

from nanoinfer.cache.block_events import EventBatch, Snapshot
from nanoinfer.errors import NoReplicaError, UnknownReplicaError

GOLDEN = 0x9E3779B97F4A7C15  # Knuth's multiplier: each bit changes about half of those above it


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """What a router knows of a request. `request_id` is the caller's, unique among the requests that have not ended.

    `token_ids`: the prompt. `extra_key` and `adapter` (its name) as in `Engine.add_request`. `hashes`: what `block_hashes`
    gives for them and the router's block size, if it has been computed already (it takes longer than a choice, and can be
    done without the router's lock); None: the router does so. ValueError for wrong values.
    """

    request_id: str
    token_ids: Sequence[int]
    max_new_tokens: int
    extra_key: Hashable = None
    adapter: str | None = None
    hashes: Sequence[int] | None = None

    def __post_init__(self) -> None:
        check_name("request_id", self.request_id)
        check_count("max_new_tokens", self.max_new_tokens, least=1)
        if not len(self.token_ids):
            raise ValueError("token_ids: is empty; must be at least one token")


@dataclass(slots=True)
class Sent:
    """A request that has been sent to `replica` (None: that one is gone) and has not ended."""

    replica: str | None
    is_running: bool = False  # its prompt has been computed


class Policy(ABC):
    """Chooses a replica for each request; a subclass says in `_pick` which one it prefers. No threads, no waiting: the same
    calls at the same times give the same choices.

    Every request that was chosen for must end: `note_end` takes it off its replica's load. UnknownReplicaError for a
    replica that was not added, ValueError for a request that was not chosen for; then nothing has changed.
    """

    def __init__(self) -> None:
        self._sent: dict[str, Sent] = {}  # by request id
        # Replica → the ids of its requests; in the order in which replicas were added.
        self._at: dict[str, set[str]] = {}

    @property
    def replicas(self) -> list[str]:
        """Their names, oldest first."""
        return list(self._at)

    def in_flight(self, replica: str) -> int:
        """How many requests it has, as far as this router knows."""
        self._check_replica(replica)
        return len(self._at[replica])

    def add_replica(self, replica: str) -> None:
        """From now on, requests may go to `replica`. ValueError if there is one of this name."""
        check_name("replica", replica)
        if replica in self._at:
            raise ValueError(f"replica={replica!r}: has been added already")
        self._at[replica] = set()

    def remove_replica(self, replica: str) -> None:
        """It is gone, and what was known of it is forgotten. `choose` takes its requests again; `note_end` does, too."""
        self._check_replica(replica)
        for request_id in self._at.pop(replica):
            self._sent[request_id].replica = None

    def choose(self, request: RoutedRequest) -> str:
        """The replica to send `request` to, which counts as sent. NoReplicaError if there is none; ValueError if the
        request is at a replica already."""
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
        """The replica has computed the prompt. `cached_tokens`: how many of its tokens it has found in its tree. A second
        call for the same request does nothing."""
        sent = self._check_sent(request_id)
        if cached_tokens is not None:
            check_count("cached_tokens", cached_tokens, least=0)
        if not sent.is_running and sent.replica is not None:
            sent.is_running = True
            self._started(request_id, sent.replica, cached_tokens)

    def note_end(self, request_id: str, output_tokens: int | None = None) -> None:
        """The request has finished, failed or was cancelled. `output_tokens`: how many it has produced."""
        sent = self._check_sent(request_id)
        if output_tokens is not None:
            check_count("output_tokens", output_tokens, least=0)
        del self._sent[request_id]
        if sent.replica is not None:
            self._at[sent.replica].remove(request_id)
        self._ended(request_id, sent, output_tokens)

    def note_events(self, replica: str, batch: EventBatch) -> bool:
        """What has changed in the replica's tree. False: a batch is missing, so ask the replica for a snapshot. (Without an
        index, nothing can be missing.)"""
        self._check_replica(replica)
        return True

    def note_snapshot(self, replica: str, snapshot: Snapshot) -> None:
        """All that is in the replica's tree."""
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


def check_name(field: str, value: object) -> None:
    """ValueError unless it is text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{field}={value!r}: must be text that is not empty")


def check_count(field: str, value: object, least: int) -> None:
    """ValueError unless it is an integer of at least `least`."""
    if not isinstance(value, int) or value < least:
        raise ValueError(f"{field}={value!r}: must be an integer of at least {least}")


def check_above_zero(field: str, value: float) -> None:
    """ValueError unless it is a number above 0."""
    if not 0 < value < inf:
        raise ValueError(f"{field}={value!r}: must be a number above 0")


@cache
def salt(replica: str) -> int:
    """A replica's part of each hash: 64 bits of its name, the same on every machine."""
    return int.from_bytes(blake2b(replica.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def rendezvous(key: int, replicas: Iterable[str]) -> str:
    """The replica that `key` (64 bits) belongs to: that of the largest hash of the key and a salt (Thaler and Ravishankar,
    1996). If one of the replicas goes, the keys of the others stay where they are. All routers agree, without a word
    between them, and a new replica moves only its own share."""
    return max(replicas, key=lambda replica: (salt(replica) ^ key) * GOLDEN % (1 << 64))
