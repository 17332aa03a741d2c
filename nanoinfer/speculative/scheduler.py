"""SpeculativeScheduler: DECODE passes become VERIFY passes, which check drafts of the tokens to come.

    schedule ──► alloc slots ──► drafters propose d1 d2 d3 ──► VERIFY: newest d1 d2 d3 ──► sample s1 s2 s3 s4 ──► compare

The pass computes the newest token of a request and its drafts at once, and a token is sampled after each of these as it
would be without drafts: with the penalties, the grammar and the random number of its position. `s1` is the request's next
token, whatever the drafts. If it equals `d1`, the pass had the right second token, so `s2` is the token after it, and so on
up to the first difference. So every token is the one that a DECODE would have given: greedy or sampled, drafts decide only
how many of them one pass gives.

A wrong draft leaves nothing behind. Its K/V is in a slot beyond the request's `kv_len`, which the next pass overwrites and
the tree never gets; its place in `token_ids` is behind the request's tokens.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.config import EngineConfig
from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.model.lora.pool import AdapterPool
from nanoinfer.requests.req import Req
from nanoinfer.scheduler.batch import Batch, only_likeliest
from nanoinfer.scheduler.scheduler import Scheduler
from nanoinfer.speculative.drafters import Drafter
from nanoinfer.speculative.length_controller import LengthController

Sampled = tuple[Req, int, dict[int, float] | None]


class SpeculativeScheduler(Scheduler):
    """A Scheduler whose requests get drafts from `drafters`, where these have an idea and it pays (see LengthController).

    With `adaptive_drafts=False`, every request gets the drafts of the first drafter that has an idea, always.
    """

    def __init__(
        self,
        config: EngineConfig,
        cache: CacheManager,
        drafters: Sequence[Drafter],
        clock: Callable[[], float] = time.perf_counter,
        adapters: AdapterPool | None = None,
        vocab_size: int | None = None,
    ):
        super().__init__(config, cache, clock, adapters)
        self.drafters = drafters
        self._vocab_size = sys.maxsize if vocab_size is None else vocab_size
        self.lengths = LengthController(len(drafters), config.num_draft_tokens, config.adaptive_drafts)
        self._counts: list[int] = []  # of the requests of the current pass: how many drafts they have
        self._drafted_by: list[int | None] = []  # and whose
        self._last_end: float | None = None  # of a pass, if the next one is to be measured
        self._drafting = 0.0  # seconds that the drafts of the current pass took

    def process_batch_result(
        self, batch: Batch, token_ids: Sequence[int], logprobs: Sequence[dict[int, float] | None]
    ) -> None:
        """As `Scheduler.process_batch_result`. After a VERIFY, there is a token for each of `batch.logits_owners`. A
        request gets those up to the first that differs from its draft, or up to the one that ends it."""
        if batch.forward_mode is not ForwardMode.VERIFY:
            super().process_batch_result(batch, token_ids, logprobs)
        else:
            self._append(self._accepted(batch, token_ids, logprobs))
            self._forget_finished()
        if batch.forward_mode is ForwardMode.EXTEND or self.lengths.resting:
            self._last_end = None  # what follows an EXTEND takes longer
            return
        began, self._last_end = self._last_end, self._clock()
        if began is not None:
            seconds = self._last_end - began - self._drafting
            self.lengths.count_pass(len(batch.reqs), len(batch.input_ids), seconds, self._drafting)

    def _decode(self, reqs: list[Req]) -> Batch:
        if self.lengths.rest_on(reqs):
            return super()._decode(reqs)
        began, self._drafting = self._clock(), 0.0
        if most := self.lengths.choose(reqs, only_likeliest(reqs)):
            self._counts = self._propose(reqs, most, self._make_room_for_drafts(reqs, most))
            self._drafting = self._clock() - began
            if any(self._counts):
                return Batch.verify(reqs, self._counts, self.cache)
        return super()._decode(reqs)

    def _make_room_for_drafts(self, reqs: Sequence[Req], most: Sequence[Sequence[int]]) -> list[int]:
        """Allocate slots for drafts, in whole pages; if there are few, later requests get fewer, or none. Returns for how
        many drafts of each request there are slots."""
        size = self.cache.page_size
        room = [max(counts) for counts in zip(*most, strict=True)]
        ends = [req.num_tokens + count for req, count in zip(reqs, room, strict=True)]
        needed = sum(
            max(self.cache.whole_pages(end) - req.allocated_len, 0) for req, end in zip(reqs, ends, strict=True)
        )
        if needed > self.cache.obtainable_size():
            self.cache.alloc_up_to(reqs, [req.num_tokens for req in reqs])  # for which there is room
            pages_left = self.cache.obtainable_size() // size
            for i, req in enumerate(reqs):
                room[i] = min(room[i], req.allocated_len + pages_left * size - req.num_tokens)
                ends[i] = req.num_tokens + room[i]
                pages_left -= max(self.cache.whole_pages(ends[i]) - req.allocated_len, 0) // size
        self.cache.alloc_up_to(reqs, ends)
        return room

    def _propose(self, reqs: Sequence[Req], most: Sequence[Sequence[int]], room: Sequence[int]) -> list[int]:
        """Let drafters write drafts behind the requests' tokens; returns how many. A request for which the first one has no
        idea gets those of the next one that has."""
        counts = [0] * len(reqs)
        self._drafted_by = [None] * len(reqs)
        for drafter, wanted in enumerate(most):
            limits = list(map(min, wanted, room))
            asked = [i for i, limit in enumerate(limits) if limit and not counts[i]]
            if not asked:
                continue
            limits, start = [limits[i] for i in asked], self._clock()
            proposed = self.drafters[drafter].propose([reqs[i] for i in asked], limits)
            self._check_drafts(drafter, proposed, limits)
            for i, drafts in zip(asked, proposed, strict=True):
                req = reqs[i]
                req.token_ids[req.num_tokens : req.num_tokens + len(drafts)] = drafts
                if len(drafts):
                    counts[i], self._drafted_by[i] = len(drafts), drafter
            self.lengths.count_proposal(drafter, sum(map(len, proposed)), self._clock() - start)
        return counts

    def _check_drafts(self, index: int, proposed: Sequence[Sequence[int]], most: Sequence[int]) -> None:
        """RuntimeError naming the drafter, before any of these drafts is used. A token that the model does not have would
        make it read memory that is not its own."""
        name = f"drafter={self.config.drafters[index]!r}"
        if len(proposed) != len(most):
            raise RuntimeError(f"{name}: proposed {len(proposed)} lists of drafts for {len(most)} requests")
        for drafts, count in zip(proposed, most, strict=True):
            if len(drafts) > count:
                raise RuntimeError(f"{name}: proposed {len(drafts)} drafts for a request: must not exceed {count}")
            for token in drafts:
                if not 0 <= token < self._vocab_size or token != int(token):
                    raise RuntimeError(f"{name}: proposed token {token}: must be in 0..{self._vocab_size - 1}")

    def _accepted(
        self, batch: Batch, token_ids: Sequence[int], logprobs: Sequence[dict[int, float] | None]
    ) -> Iterator[Sampled]:
        """The tokens that count, request by request. Must be appended as they come: then the drafts are counted."""
        first = 0
        for req, count, drafter in zip(batch.reqs, self._counts, self._drafted_by, strict=True):
            before = req.num_tokens
            drafts: list[int] = req.token_ids[before : before + count].tolist()
            accepted = 0
            while accepted < count and token_ids[first + accepted] == drafts[accepted]:
                accepted += 1
            for i in range(first, first + accepted + 1):
                yield req, token_ids[i], logprobs[i]
            first += count + 1
            if drafter is None:
                continue
            accepted = min(accepted, req.num_tokens - before)  # the request may have ended at one of them
            req.drafted_tokens += count
            req.accepted_tokens += accepted
            self.drafted_tokens += count
            self.accepted_tokens += accepted
            self.lengths.count_drafts(req, drafter, count, accepted)
