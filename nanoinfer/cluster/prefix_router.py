"""PrefixRouter: sends a request where its prefix lies, unless waiting there takes longer than computing it elsewhere."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf

import numpy as np

from nanoinfer.cache.block_events import EventBatch, Snapshot, as_tokens, block_hashes, chained_hashes
from nanoinfer.cluster.base_policy import BasePolicy, Sent
from nanoinfer.cluster.block_index import BlockIndex
from nanoinfer.cluster.block_sets import Hashes, exactly, matched_blocks
from nanoinfer.cluster.costs import PassCosts
from nanoinfer.cluster.pending_prefixes import PendingPrefixes
from nanoinfer.cluster.policy import ReplicaLoad, RoutedRequest, check_count
from nanoinfer.cluster.replica_queue import ReplicaQueue, Work, work_of
from nanoinfer.cluster.replica_table import ReplicaTable, rendezvous

PREFILL_WEIGHT = 2.0  # a request waits for what it computes, and so do those behind it
TIE = 0.05  # costs that differ by less than this share of the whole prefill count as equal
DISTRUST, FORGIVENESS = 0.5, 0.1  # how much of a disappointment, and of a promise that was kept, changes trust
FORGIVEN = 0.99  # so much trust counts as all of it
FETCHED = 0.5  # of a block: what one counts that a replica does not have on its device, but in host memory or files
TRUSTED = 0.5  # a replica that is trusted less comes last among equals
OUTPUT_MEMORY = 32  # how many outputs change the length that is expected of one
FIRST_GUESS = 128  # output tokens of a request, before any has ended
MOST_ROUTERS = 64
LEAST_CHANGE, LEAST_SHARE = 1 / 8, 1 / 16  # of their number: smaller ones do not make all sums obsolete

Matched = Sequence[tuple[int, int]]  # what matched_blocks finds


@dataclass(slots=True)
class Replica:
    """What the router knows of one replica, besides its ReplicaTable. `place`: there, and of its bit in the index."""

    place: int
    queue: ReplicaQueue
    claimed: dict[str, int] = field(default_factory=dict)  # by request id: tokens of the prompt that it says it holds
    reported: tuple[int, int] = (0, 0)  # this router's requests and those of others, at its last report

    @property
    def bit(self) -> int:
        return 1 << self.place


class PrefixRouter(BasePolicy):
    """A Policy. For each replica it adds up, in seconds,

        the work that is ahead there  +  2 ×  the prefill of what is not cached there

    and takes the least. What is cached is what events say (BlockIndex), what this router has just sent there
    (PendingPrefixes), and no more than the replica has proved to be worth believing: one that claims blocks and then
    reports fewer `cached_tokens` is believed less. A block that is not on a replica's device, but in its host memory or
    files, counts half, because it has to be fetched. Among replicas whose costs are almost
    equal, those that are believed come first, then those that have most cached, then rendezvous hashing of the first new
    block decides: so several routers send a new prefix to the same replica.

    - `costs`: of the replicas' passes (`calibrate` measures them). `chunk_tokens`: their `chunked_prefill_size`.
    - `block_size`: `event_block_size` of their feeds. `max_blocks`: how many blocks per replica the index keeps.
    - `max_running_requests`: of a replica, as in EngineConfig; None: as many as are sent.
    - `max_imbalance_s`: a replica with so many seconds of work more ahead than the least loaded one gets nothing, whatever
      it has cached. It should be above the prefill of the longest prefix that requests share.
    - `pending_s`: for how long a prefix that was sent is believed to be there without a first token; `linger_s`: for how
      long after it without an event. `report_s`: a replica's report of its load counts for so long.
    - `clock` returns seconds.

    ValueError names a number of tokens, blocks or requests that is below 1.
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
        self.index = BlockIndex(block_size, max_blocks)
        self.pending = PendingPrefixes()
        self._costs, self._clock, self._max_imbalance_s = costs, clock, max_imbalance_s
        self._pending_s, self._linger_s = pending_s, linger_s
        self._work = partial(work_of, costs, chunk_tokens)
        self._new_queue = lambda: ReplicaQueue(costs, max_running_requests, report_s)
        self._known: dict[str, Replica] = {}
        self._table = ReplicaTable()
        self._output_tokens = float(FIRST_GUESS)  # of a request, as observed
        self._own = self._others = 0  # requests at the last report of each replica, added up
        self._factor, self._is_obsolete = 1.0, False  # how many routers there seem to be; whether sums had another one

    # --- what it is told -------------------------------------------------------------------------------------------

    def add_replica(self, replica: str) -> None:
        """As in Policy."""
        super().add_replica(replica)
        self._known[replica] = known = Replica(self._table.add(replica), self._new_queue())
        self.index.add(replica, known.bit)

    def remove_replica(self, replica: str) -> None:
        """As in Policy."""
        super().remove_replica(replica)
        known = self._known.pop(replica)
        self._table.remove(known.place)
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
        now, known = self._clock(), self._known[replica]
        known.queue.report(load, now)
        self._note_routers(known, (known.queue.size, known.queue.others))
        self._sum_up(known, now)

    def _started(self, request_id: str, replica: str, cached_tokens: int | None) -> None:
        now, known = self._clock(), self._known[replica]
        known.queue.start(request_id, now)
        self._sum_up(known, now)
        self.pending.end_at(request_id, now + self._linger_s)
        claimed = known.claimed.pop(request_id)
        if cached_tokens is not None and claimed:
            true = min((cached_tokens + self.index.block_size) / claimed, 1.0)
            trust = self._table.doubted.pop(known.place, 1.0)
            trust += (true - trust) * (DISTRUST if true < trust else FORGIVENESS)
            if trust < FORGIVEN:
                self._table.doubted[known.place] = trust

    def _ended(self, request_id: str, sent: Sent, output_tokens: int | None) -> None:
        if not sent.is_running:
            self.pending.forget(request_id)
        if sent.replica is not None:
            now, known = self._clock(), self._known[sent.replica]
            known.queue.end(request_id, now)
            self._sum_up(known, now)
            known.claimed.pop(request_id, None)
        if output_tokens is not None:
            self._output_tokens += (output_tokens - self._output_tokens) / OUTPUT_MEMORY

    def _note_routers(self, known: Replica, reported: tuple[int, int]) -> None:
        self._own += reported[0] - known.reported[0]
        self._others += reported[1] - known.reported[1]
        known.reported = reported
        factor = min(1 + self._others / max(self._own, 1), MOST_ROUTERS)
        if abs(factor - self._factor) > max(LEAST_CHANGE, LEAST_SHARE * self._factor):
            self._factor, self._is_obsolete = factor, True

    def _sum_up(self, known: Replica, now: float) -> None:
        self._table.set_sums(known.place, known.queue.sums(now, self._factor))

    def _ahead(self, output_tokens: float, now: float) -> np.ndarray:
        """As ReplicaTable's, with sums that hold now."""
        if self._is_obsolete or now > self._table.hold_until:
            self._is_obsolete, self._table.hold_until = False, inf
            for known in self._known.values():
                self._sum_up(known, now)
        return self._table.ahead(output_tokens, now)

    # --- looking at it ---------------------------------------------------------------------------------------------

    def seconds_ahead(self, replica: str, output_tokens: float | None = None) -> float:
        """By how many seconds the work at `replica` would delay a request with so many output tokens; None: as many as
        requests have had so far."""
        self._check_replica(replica)
        tokens = self._output_tokens if output_tokens is None else output_tokens
        return float(self._ahead(tokens, self._clock())[self._known[replica].place])

    def trust(self, replica: str) -> float:
        """How much of what `replica` says it holds it is believed, 0 to 1."""
        self._check_replica(replica)
        return self._table.doubted.get(self._known[replica].place, 1.0)

    # --- how it chooses --------------------------------------------------------------------------------------------

    def _pick(self, request: RoutedRequest) -> str:
        now, size, num_tokens = self._clock(), self.index.block_size, len(request.token_ids)
        hashes = request.hashes
        if hashes is None:
            hashes = block_hashes(request.token_ids, size, request.extra_key, request.adapter)
        elif len(hashes) != num_tokens // size:
            raise ValueError(f"hashes: are {len(hashes)}, must be {num_tokens // size}: {num_tokens} tokens // {size}")
        self.pending.expire(now)
        held = expected = matched_blocks(hashes, self.index.sets)
        if (pending := self.pending.sets_of(hashes)) is not None:
            expected = matched_blocks(hashes, self.index.sets, pending)
        below = [self.index.below, *([] if pending is None else [pending])] if self.index.below.masks else []
        reached = matched_blocks(hashes, self.index.sets, *below) if below else []
        ahead = self._ahead(min(request.max_new_tokens, self._output_tokens), now)
        place, work = self._best(ahead, request, hashes, held, expected, reached)

        known, claims = self._known[self._table.names[place]], _blocks_at(place, held)
        known.queue.add(request.request_id, work, now)
        self._sum_up(known, now)
        known.claimed[request.request_id] = min(size * claims, num_tokens - 1)
        self.pending.add(request.request_id, known.bit, hashes[claims:], now + self._pending_s)
        return self._table.names[place]

    def _best(
        self,
        ahead: np.ndarray,
        request: RoutedRequest,
        hashes: Hashes,
        held: Matched,
        expected: Matched,
        reached: Matched,
    ) -> tuple[int, Work]:
        """The place of the replica that costs least, and what the request takes there. Of those that cost almost as little,
        it is one of the most trusted ones that have most cached."""
        num_tokens, size, doubted = len(request.token_ids), self.index.block_size, self._table.doubted
        works = [(bits, self._work(num_tokens, blocks * size)) for blocks, bits in reversed(expected)]
        whole = self._work(num_tokens, 0)
        if reached:
            works += [
                (bits & more, self._work(num_tokens, int(size * (blocks + FETCHED * (most - blocks)))))
                for most, more in exactly(reached)
                for blocks, bits in exactly(expected)
                if most > blocks and bits & more
            ]
        works += [
            (1 << place, self._work(num_tokens, int(size * (trust * claims + _blocks_at(place, expected) - claims))))
            for place, trust in doubted.items()
            if (claims := _blocks_at(place, held))
        ]
        weighed = [(bits, PREFILL_WEIGHT * work.seconds) for bits, work in works]
        prefills = self._table.by_bits(weighed, PREFILL_WEIGHT * whole.seconds)
        costs = ahead + prefills
        tie = TIE * self._costs.prefill_seconds(num_tokens)
        if self._max_imbalance_s < PREFILL_WEIGHT * whole.seconds + tie:  # else, more ahead costs more, too
            np.putmask(costs, ahead > ahead[ahead.argmin()] + self._max_imbalance_s, np.inf)
        equal = (costs <= float(costs[costs.argmin()]) + tie).nonzero()[0]
        if len(equal) > 1 and doubted:
            trusted = [place for place in equal.tolist() if doubted.get(place, 1.0) >= TRUSTED]
            equal = np.array(trusted) if trusted else equal
        if len(equal) > 1:
            left = prefills[equal]
            equal = equal[left == left[left.argmin()]]
        chosen = 0 if len(equal) == 1 else rendezvous(_key(request, hashes, expected, size), self._table.salts[equal])
        place = int(equal[chosen])
        return place, next((work for bits, work in reversed(works) if bits >> place & 1), whole)


def _blocks_at(place: int, matched: Matched) -> int:
    """How many leading blocks the replica there has."""
    return next((blocks for blocks, bits in matched if bits >> place & 1), 0)


def _key(request: RoutedRequest, hashes: Hashes, expected: Matched, size: int) -> int:
    """What several routers have in common that choose for prompts with one new prefix: its first block that no replica has,
    or the tokens after its last block."""
    first_new = expected[0][0] if expected else 0
    if first_new < len(hashes):
        return hashes[first_new]
    rest = as_tokens(request.token_ids[size * len(hashes) :])
    parent = hashes[-1] if hashes else 0
    return chained_hashes(rest, len(rest), parent)[0] if len(rest) else parent
