"""What a router must be able to do, whatever it decides by: the protocol `Policy`, and what it is told."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Protocol

from nanoinfer.cache.block_events import EventBatch, Snapshot

if TYPE_CHECKING:
    from nanoinfer.engine.engine import Engine
    from nanoinfer.requests.req import Req


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


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """Requests in a replica, as it reports them.

    - `waiting_requests`: those without a first token yet; `queued_tokens`: of their prompts, not computed yet.
    - `running_requests`: those that have produced a token and have not ended.
    """

    waiting_requests: int
    queued_tokens: int
    running_requests: int

    @classmethod
    def of(cls, reqs: "Iterable[Req]") -> "ReplicaLoad":
        """What these requests are. Tokens of a waiting prompt count in full, although some may turn out to be cached."""
        reqs = list(reqs)
        prompts = [req.prompt_len - req.kv_len for req in reqs if not req.num_output_tokens]
        return cls(len(prompts), sum(prompts), len(reqs) - len(prompts))


def load_of(engine: "Engine", counts: Callable[[int], bool] = lambda request_id: True) -> ReplicaLoad:
    """The requests in an engine, now. Any thread may ask, and waits for the current step to end.

    `counts`: whether a request counts, by its id: a router wants to hear of those that others have sent (`note_load`).
    """
    with engine.visit():
        reqs = (*engine.scheduler.waiting, *engine.scheduler.running)
        return ReplicaLoad.of(req for req in reqs if counts(req.request_id))


class Policy(Protocol):
    """Chooses a replica for each request. No threads, no waiting: the same calls at the same times give the same choices.

    Every request that was chosen for must end: `note_end` takes it off its replica's load. UnknownReplicaError for a
    replica that was not added, ValueError for a request that was not chosen for; then nothing has changed.
    """

    def add_replica(self, replica: str) -> None:
        """From now on, requests may go to `replica`. ValueError if there is one of this name."""

    def remove_replica(self, replica: str) -> None:
        """It is gone, and what was known of it is forgotten. `choose` takes its requests again; `note_end` does, too."""

    def choose(self, request: RoutedRequest) -> str:
        """The replica to send `request` to, which counts as sent. NoReplicaError if there is none; ValueError if the
        request is at a replica already."""

    def note_first_token(self, request_id: str, cached_tokens: int | None = None) -> None:
        """The replica has computed the prompt. `cached_tokens`: how many of its tokens it has found in its tree."""

    def note_end(self, request_id: str, output_tokens: int | None = None) -> None:
        """The request has finished, failed or was cancelled. `output_tokens`: how many it has produced."""

    def note_events(self, replica: str, batch: EventBatch) -> bool:
        """What has changed in the replica's tree. False: a batch is missing, so ask the replica for a snapshot."""

    def note_snapshot(self, replica: str, snapshot: Snapshot) -> None:
        """All that is in the replica's tree."""

    def note_load(self, replica: str, load: ReplicaLoad) -> None:
        """What other routers have sent to the replica, as it reports it. Its own requests a router knows better: some that
        a report counts have ended before it arrives."""


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
