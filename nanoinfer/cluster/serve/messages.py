"""What the door and the replicas say to each other. Everything here is small and can be pickled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nanoinfer.cache.block_events import EventBatch, Snapshot
from nanoinfer.cluster.costs import PassCosts
from nanoinfer.cluster.policy import ReplicaLoad
from nanoinfer.config import EngineConfig
from nanoinfer.requests.request import Request
from nanoinfer.requests.stream_pieces import StreamPiece


@dataclass(frozen=True)
class Call:
    """The door asks for completions of one prompt. `requests`: one per completion that has not ended, each with n=1.

    `call_id`: the same however often the call moves to another replica. `door`: who asks. `avoid`: replicas that have lost
    or refused it. `prompt`: the prompt as text, only for routers that want one (Ray's).
    """

    call_id: str
    door: str
    requests: Sequence[Request]
    avoid: frozenset[str] = frozenset()
    prompt: str = ""


@dataclass(frozen=True)
class Addressed:
    """Something for one replica, of whatever kind its method takes; "" is any replica. `prompt`: as in Call; Ray's router
    divides by its length."""

    replica: str
    door: str = ""
    content: Any = None
    prompt: str = " "


@dataclass(frozen=True)
class Accepted:
    """First answer to a Call: its requests are queued at `replica`."""

    replica: str


@dataclass(frozen=True)
class Refused:
    """First and only answer to a Call that cannot be queued: the error, as the engine raised it."""

    replica: str
    error: Exception


@dataclass(frozen=True)
class Ended:
    """The end of a completion; its last piece came before. `error`: what failed, if a step did."""

    index: int
    drafted_tokens: int
    accepted_tokens: int
    error: Exception | None = None


@dataclass(frozen=True)
class News:
    """What is new: pieces, whose `index` is a request's place in the Call. Empty: the replica is alive, and that is all."""

    pieces: Sequence[StreamPiece] = ()
    ends: Sequence[Ended] = ()


@dataclass(frozen=True)
class Since:
    """Asks for the batches of `source` from number `seq` on; source "": for a snapshot."""

    source: str = ""
    seq: int = 0


@dataclass(frozen=True)
class Told:
    """A replica's answer to Since: what has changed in its tree, or all of it, and how busy it is."""

    batches: Sequence[EventBatch] = ()
    snapshot: Snapshot | None = None
    load: ReplicaLoad | None = None


@dataclass(frozen=True)
class Description:
    """What a door must know about the model that the replicas serve. `path`: its folder, for the tokenizer; None if it has
    none. `costs`: of its passes, if they were measured."""

    name: str
    path: str | None
    config: EngineConfig
    vocab_size: int
    end_token_ids: Sequence[int]
    adapters: Sequence[str] = field(default_factory=tuple)
    most_tokens: int = 0
    costs: PassCosts | None = None
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)


Answer = Accepted | Refused | News
