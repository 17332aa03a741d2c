"""PrefixRouter: sends a request where its prefix lies, unless waiting there takes longer than computing it elsewhere."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import NamedTuple

from nanoinfer.cache.block_events import EventBatch, Snapshot, as_tokens, block_hashes, chained_hashes
from nanoinfer.cluster.base_policy import BasePolicy, Sent
from nanoinfer.cluster.block_index import BlockIndex
from nanoinfer.cluster.block_sets import BlockSets, Hashes, matched_blocks
from nanoinfer.cluster.costs import PassCosts
from nanoinfer.cluster.pending_prefixes import PendingPrefixes
from nanoinfer.cluster.policy import ReplicaLoad, RoutedRequest, check_count
from nanoinfer.cluster.rendezvous import rendezvous
from nanoinfer.cluster.replica_queue import ReplicaQueue

PREFILL_WEIGHT = 2.0  # a request waits for what it computes, and so do those behind it
TIE = 0.05  # costs that differ by less than this share of the whole prefill count as equal
DISTRUST, FORGIVENESS = 0.5, 0.1  # how much of a disappointment, and of a promise that was kept, changes trust
TRUSTED = 0.5  # a replica that is trusted less comes last among equals
OUTPUT_MEMORY = 32  # how many outputs change the length that is expected of one
FIRST_GUESS = 128  # output tokens of a request, before any has ended
MOST_ROUTERS, FACTOR_STEPS = 64, 8


@dataclass(slots=True)
class Replica:
    """What the router knows of one replica. `trust`: how much of what it says it holds it is believed, 0 to 1."""

    number: int  # of its bit in the index
    queue: ReplicaQueue
    trust: float = 1.0
    claimed: dict[str, int] = field(default_factory=dict)  # by request id: tokens of the prompt that it says it holds
    reported: tuple[int, int] = (0, 0)  # this router's requests and those of others, at its last report

    @property
    def bit(self) -> int:
        return 1 << self.number


class Option(NamedTuple):
    """A replica that may be chosen. `cost` in seconds; `cached`: how many tokens of the prompt it is believed to have."""

    cost: float
    is_trusted: bool
    cached: int
    replica: str


class PrefixRouter(BasePolicy):
    """A Policy. For each replica it adds up, in seconds,

        the work that is ahead there  +  2 ×  the prefill of what is not cached there

    and takes the least. What is cached is what events say (BlockIndex), what this router has just sent there
    (PendingPrefixes), and no more than the replica has proved to be worth believing: one that claims blocks and then
    reports fewer `cached_tokens` is believed less. Among replicas whose costs are almost equal, those that are believed
    come first, then those that have most cached, then rendezvous hashing of the first new block decides: so several
    routers send a new prefix to the same replica.

    - `costs`: of the replicas' passes (`calibrate` measures them). `chunk_tokens`: their `chunked_prefill_size`.
    - `block_size`: `event_block_size` of their feeds. `max_blocks`: how many blocks per replica the index keeps.
    - `max_running_requests`: of a replica, as in EngineConfig; None: as many as are sent.
    - `max_imbalance_s`: a replica with so many seconds of work more ahead than the least loaded one gets nothing, whatever
      it has cached. It should be above the prefill of the longest prefix that requests share.
    - `pending_s`: for how long a prefix that was sent is believed to be there without a first token; `linger_s`: for how
      long after it without an event. `report_s`: a replica's report of its load counts for so long.
    - `clock` returns seconds.

    ValueError names an option that is out of range.
    """

    def __init__(
        self,
        costs: PassCosts,
        *,
        block_size: int = 16,
        chunk_tokens: int = 2048,
        max_running_requests: int | None = None,
        max_imbalance_s: float = 10.0,
        pending_s: float = 60.0,
        linger_s: float = 2.0,
        report_s: float = 5.0,
        max_blocks: int = 1 << 20,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        check_count("chunk_tokens", chunk_tokens, least=1)
        if max_running_requests is not None:
            check_count("max_running_requests", max_running_requests, least=1)
        seconds = {
            "max_imbalance_s": max_imbalance_s,
            "pending_s": pending_s,
            "linger_s": linger_s,
            "report_s": report_s,
        }
        for name, value in seconds.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise ValueError(f"{name}={value!r}: must be a number of seconds, at least 0")
        self.index = BlockIndex(block_size, max_blocks)
        self.pending = PendingPrefixes()
        self._costs, self._clock, self._max_imbalance_s = costs, clock, max_imbalance_s
        self._pending_s, self._linger_s = pending_s, linger_s
        self._new_queue = lambda: ReplicaQueue(costs, chunk_tokens, max_running_requests, report_s)
        self._known: dict[str, Replica] = {}
        self._output_tokens = float(FIRST_GUESS)  # of a request, as observed
        self._own = self._others = 0  # requests at the last report of each replica, added up

    # --- what it is told -------------------------------------------------------------------------------------------

    def add_replica(self, replica: str) -> None:
        """As in Policy."""
        super().add_replica(replica)
        taken = {known.number for known in self._known.values()}
        number = next(number for number in count() if number not in taken)
        self._known[replica] = known = Replica(number, self._new_queue())
        self.index.add(replica, known.bit)

    def remove_replica(self, replica: str) -> None:
        """As in Policy."""
        super().remove_replica(replica)
        known = self._known.pop(replica)
        self.index.remove(replica)
        self.pending.forget_replica(known.bit)
        self._note_routers(known, (0, 0))

    def note_events(self, replica: str, batch: EventBatch) -> bool:
        """As in Policy. ValueError if the blocks have another size than the router's."""
        self._check_replica(replica)
        return self.index.note_events(replica, batch)

    def note_snapshot(self, replica: str, snapshot: Snapshot) -> None:
        """As in Policy. ValueError if the blocks have another size than the router's."""
        self._check_replica(replica)
        self.index.note_snapshot(replica, snapshot)

    def note_load(self, replica: str, load: ReplicaLoad) -> None:
        """As in Policy."""
        self._check_replica(replica)
        known = self._known[replica]
        known.queue.report(load, self._clock())
        self._note_routers(known, (known.queue.size, known.queue.others))

    def _started(self, request_id: str, replica: str, cached_tokens: int | None) -> None:
        now, known = self._clock(), self._known[replica]
        known.queue.start(request_id, now)
        self.pending.end_at(request_id, now + self._linger_s)
        claimed = known.claimed.pop(request_id)
        if cached_tokens is not None and claimed:
            true = min((cached_tokens + self.index.block_size) / claimed, 1.0)
            known.trust += (true - known.trust) * (DISTRUST if true < known.trust else FORGIVENESS)

    def _ended(self, request_id: str, sent: Sent, output_tokens: int | None) -> None:
        if not sent.is_running:
            self.pending.forget(request_id)
        if sent.replica is not None:
            known = self._known[sent.replica]
            known.queue.end(request_id, self._clock())
            known.claimed.pop(request_id, None)
        if output_tokens is not None:
            self._output_tokens += (output_tokens - self._output_tokens) / OUTPUT_MEMORY

    def _note_routers(self, known: Replica, reported: tuple[int, int]) -> None:
        self._own += reported[0] - known.reported[0]
        self._others += reported[1] - known.reported[1]
        known.reported = reported

    # --- looking at it ---------------------------------------------------------------------------------------------

    def seconds_ahead(self, replica: str, output_tokens: float | None = None) -> float:
        """By how many seconds the work at `replica` would delay a request with so many output tokens; None: as many as
        requests have had so far."""
        self._check_replica(replica)
        tokens = self._output_tokens if output_tokens is None else output_tokens
        return self._known[replica].queue.ahead(tokens, self._clock(), self._factor)

    def trust(self, replica: str) -> float:
        """How much of what `replica` says it holds it is believed, 0 to 1."""
        self._check_replica(replica)
        return self._known[replica].trust

    # --- how it chooses --------------------------------------------------------------------------------------------

    def _pick(self, request: RoutedRequest) -> str:
        now, size, tokens = self._clock(), self.index.block_size, as_tokens(request.token_ids)
        hashes = block_hashes(tokens, size, request.extra_key, request.adapter)
        self.pending.expire(now)
        claimed = _by_number(hashes, self.index.sets)
        expected = _by_number(hashes, self.index.sets, self.pending.sets) if len(self.pending) else claimed
        output_tokens = min(request.max_new_tokens, self._output_tokens)
        equal = self._equally_good(len(tokens), output_tokens, now, claimed, expected)
        first_new = max(expected.values(), default=0)
        key = hashes[first_new] if first_new < len(hashes) else chained_hashes(tokens, len(tokens), 0)[0]
        chosen = rendezvous(key, [option.replica for option in equal])

        known = self._known[chosen]
        known.queue.add(request.request_id, known.queue.work(len(tokens), equal[0].cached), now)
        claims = claimed.get(known.number, 0)
        known.claimed[request.request_id] = min(size * claims, len(tokens) - 1)
        self.pending.add(request.request_id, known.bit, hashes[claims:], now + self._pending_s)
        return chosen

    def _equally_good(
        self, num_tokens: int, output_tokens: float, now: float, claimed: dict[int, int], expected: dict[int, int]
    ) -> list[Option]:
        """The replicas with the least cost, or almost; of these, only the most trusted ones that have most cached."""
        factor = self._factor
        ahead = [known.queue.ahead(output_tokens, now, factor) for known in self._known.values()]
        limit = min(ahead) + self._max_imbalance_s
        tie, least = TIE * self._costs.prefill_seconds(num_tokens), inf
        options, prefill = list[Option](), dict[int, float]()
        for (name, known), seconds in zip(self._known.items(), ahead, strict=True):
            if seconds <= limit:
                claims, expects = claimed.get(known.number, 0), expected.get(known.number, 0)
                cached = int(self.index.block_size * (known.trust * claims + expects - claims))
                if cached not in prefill:
                    prefill[cached] = PREFILL_WEIGHT * known.queue.work(num_tokens, cached).seconds
                cost = seconds + prefill[cached]
                if cost <= least + tie:
                    options.append(Option(cost, known.trust >= TRUSTED, cached, name))
                    least = min(least, cost)
        equal = [option for option in options if option.cost <= least + tie]
        best = max((option.is_trusted, option.cached) for option in equal)
        return [option for option in equal if (option.is_trusted, option.cached) == best]

    @property
    def _factor(self) -> float:
        """How many requests there are for each of this router's; in steps, since every change makes sums obsolete."""
        factor = 1 + self._others / max(self._own, 1)
        return min(round(factor * FACTOR_STEPS) / FACTOR_STEPS, MOST_ROUTERS)


def _by_number(hashes: Hashes, *sets: BlockSets) -> dict[int, int]:
    """Replicas by their numbers → how many leading blocks each has."""
    found: dict[int, int] = {}
    for blocks, bits in matched_blocks(hashes, *sets):
        digits = bin(bits)[:1:-1]  # from the lowest on; much quicker than taking bits off a long integer one by one
        number = digits.find("1")
        while number >= 0:
            found[number] = blocks
            number = digits.find("1", number + 1)
    return found
