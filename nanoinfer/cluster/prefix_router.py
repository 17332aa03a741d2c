"""PrefixRouter: sends a request where its prefix lies, unless waiting there takes longer than computing it elsewhere."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

from nanoinfer.cache.block_events import EventBatch, Snapshot, as_tokens, block_hashes, chained_hashes
from nanoinfer.cluster.block_index import BlockIndex, Hashes, matched_blocks
from nanoinfer.cluster.costs import PassCosts
from nanoinfer.cluster.pending_prefixes import PendingPrefixes
from nanoinfer.cluster.policy import Policy, RoutedRequest, Sent, check_count, rendezvous
from nanoinfer.cluster.replica_queue import ReplicaQueue, work_of

PREFILL_WEIGHT = 2.0  # a request waits for what it computes, and so do those behind it
TIE = 0.05  # costs that differ by less than this share of the whole prefill count as equal
FETCHED = 0.5  # of a block: what one counts that a replica does not have on its device, but in host memory or files
OUTPUT_MEMORY = 32  # how many outputs change the length that is expected of one
FIRST_GUESS = 128  # output tokens of a request, before any has ended

Matched = Sequence[tuple[int, int]]  # what matched_blocks finds


class PrefixRouter(Policy):
    """For each replica it adds up, in seconds,

        the work that is queued there  +  2 ×  the prefill of what is not cached there

    and takes the least. What is cached is what events say (BlockIndex), and what this router has just sent there
    (PendingPrefixes). A block that is not on a replica's device, but in its host memory or files, counts half, because
    it has to be fetched. Among replicas whose costs are almost equal, those come first that
    have most cached, then rendezvous hashing of the first new block decides: so several routers send a new prefix to the
    same replica.

    - `costs`: of the replicas' passes (`calibrate` measures them). `chunk_tokens`: their `chunked_prefill_size`.
    - `block_size`: `event_block_size` of their feeds. `max_blocks`: how many blocks per replica the index keeps.
    - `max_running_requests`: of a replica, as in EngineConfig; None: as many as are sent.
    - `max_imbalance_s`: a replica with so many more seconds of queued work than the least loaded one gets nothing, whatever
      it has cached. It should be above the prefill of the longest prefix that requests share.
    - `pending_s`: for how long a prefix that was sent is believed to be there without a first token; `linger_s`: for how
      long after it without an event.
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
        self._new_queue = lambda: ReplicaQueue(costs, max_running_requests)
        self._bits: dict[str, int] = {}  # of each replica, in the index
        self._queues: dict[str, ReplicaQueue] = {}
        self._output_tokens = float(FIRST_GUESS)  # of a request, as observed

    # --- what it is told -------------------------------------------------------------------------------------------

    def add_replica(self, replica: str) -> None:
        """As in Policy."""
        super().add_replica(replica)
        taken = self._bits.values()
        self._bits[replica] = next(bit for place in count() if (bit := 1 << place) not in taken)
        self._queues[replica] = self._new_queue()
        self.index.add(replica, self._bits[replica])

    def remove_replica(self, replica: str) -> None:
        """As in Policy."""
        super().remove_replica(replica)
        del self._queues[replica]
        self.index.remove(replica)
        self.pending.forget_replica(self._bits.pop(replica))

    def note_events(self, replica: str, batch: EventBatch) -> bool:
        """As in Policy. ValueError if the blocks have another size than the router's."""
        self._check_replica(replica)
        return self.index.note_events(replica, batch)

    def note_snapshot(self, replica: str, snapshot: Snapshot) -> None:
        """As in Policy. ValueError if the blocks have another size than the router's."""
        self._check_replica(replica)
        self.index.note_snapshot(replica, snapshot)

    def _started(self, request_id: str, replica: str, cached_tokens: int | None) -> None:
        now = self._clock()
        self._queues[replica].start(request_id, now)
        self.pending.end_at(request_id, now + self._linger_s)

    def _ended(self, request_id: str, sent: Sent, output_tokens: int | None) -> None:
        if not sent.is_running:
            self.pending.forget(request_id)
        if sent.replica is not None:
            self._queues[sent.replica].end(request_id, self._clock())
        if output_tokens is not None:
            self._output_tokens += (output_tokens - self._output_tokens) / OUTPUT_MEMORY

    def queued_seconds(self, replica: str, output_tokens: float | None = None) -> float:
        """By how many seconds the work at `replica` would delay a request with so many output tokens; None: as many as
        requests have had so far."""
        self._check_replica(replica)
        tokens = self._output_tokens if output_tokens is None else output_tokens
        return self._queues[replica].queued_seconds(tokens, self._clock())

    # --- how it chooses --------------------------------------------------------------------------------------------

    def _pick(self, request: RoutedRequest) -> str:
        now, size, num_tokens = self._clock(), self.index.block_size, len(request.token_ids)
        hashes = request.hashes
        if hashes is None:
            hashes = block_hashes(request.token_ids, size, request.extra_key, request.adapter)
        elif len(hashes) != num_tokens // size:
            raise ValueError(f"hashes: are {len(hashes)}, must be {num_tokens // size}: {num_tokens} tokens // {size}")
        self.pending.expire(now)
        expected = matched_blocks(hashes, self.index.sets, self.pending.sets)
        reached = matched_blocks(hashes, self.index.sets, self.pending.sets, self.index.below)
        output_tokens = min(request.max_new_tokens, self._output_tokens)
        queued = {name: queue.queued_seconds(output_tokens, now) for name, queue in self._queues.items()}
        most_queued = min(queued.values()) + self._max_imbalance_s
        works = {}
        for name in [name for name, seconds in queued.items() if seconds <= most_queued]:
            there, below = (_blocks_at(self._bits[name], matched) for matched in (expected, reached))
            works[name] = self._work(num_tokens, int(size * (there + FETCHED * (below - there))))

        costs = {name: queued[name] + PREFILL_WEIGHT * work.seconds for name, work in works.items()}
        limit = min(costs.values()) + TIE * self._costs.prefill_seconds(num_tokens)
        equal = [name for name, cost in costs.items() if cost <= limit]
        least = min(works[name].seconds for name in equal)
        equal = [name for name in equal if works[name].seconds == least]
        chosen = equal[0] if len(equal) == 1 else rendezvous(_key(request, hashes, expected, size), equal)

        self._queues[chosen].add(request.request_id, works[chosen], now)
        bit = self._bits[chosen]
        missing = hashes[_blocks_at(bit, matched_blocks(hashes, self.index.sets)) :]
        self.pending.add(request.request_id, bit, missing, now + self._pending_s)
        return chosen


def _blocks_at(bit: int, matched: Matched) -> int:
    """How many leading blocks the replica of `bit` has."""
    return next((blocks for blocks, bits in matched if bits & bit), 0)


def _key(request: RoutedRequest, hashes: Hashes, expected: Matched, size: int) -> int:
    """What several routers have in common that choose for prompts with one new prefix: its first block that no replica has,
    or the tokens after its last block."""
    first_new = expected[0][0] if expected else 0
    if first_new < len(hashes):
        return hashes[first_new]
    rest = as_tokens(request.token_ids[size * len(hashes) :])
    parent = hashes[-1] if hashes else 0
    return chained_hashes(rest, len(rest), parent)[0] if len(rest) else parent
