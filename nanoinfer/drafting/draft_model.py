"""DraftModel: a smaller model with the same vocabulary drafts token by token; its K/V is under the same slot numbers."""

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from nanoinfer.batch import Batch, only_likeliest
from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.drafting.prefix_stamps import PrefixStamps
from nanoinfer.model.input_metadata import ForwardMode
from nanoinfer.model.layers.logits_processor import Likeliest
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.model.verify import DecodeRows
from nanoinfer.requests.ahead import Ahead
from nanoinfer.requests.req import NO_TOKEN, Req
from nanoinfer.sampling.sampler import Sampler
from nanoinfer.signals import interruptible

MOST_ROWS = 64  # with more tokens to catch up on, an EXTEND is faster than a DECODE row for each


class DraftModel:
    """Runs the draft model of `runner`, whose K/V pool has a slot for each of the large model's, and shares its rows.

    So the scheduler's allocation, retraction, eviction and prefix hits hold for both, and nothing has to be told to this
    drafter. It must only know which slots have its K/V of the tokens that are there now. For that, it stamps a slot when it
    fills it (see PrefixStamps), and computes what has no stamp, or another one. That is the prompt the first time, and
    one or two tokens from then on.

    The drafts are sampled with the request's own parameters and random numbers: if the two models agree on the
    probabilities, they agree on the token.
    """

    def __init__(self, runner: ModelRunner, cache: CacheManager, sampler: Sampler):
        self._runner, self._cache, self._sampler = runner, cache, sampler
        self._stamps = np.zeros(runner.token_to_kv_pool.size, dtype=np.uint64)
        self._prefixes: WeakKeyDictionary[Req, PrefixStamps] = WeakKeyDictionary()

    def propose(self, reqs: Sequence[Req], most: Sequence[int]) -> list[list[int]]:
        likeliest = only_likeliest(reqs)
        starts = [self._first_missing(req) for req in reqs]
        counts = list(most)
        for step in range(max(most)):
            drafting = [i for i, count in enumerate(counts) if count > step]
            if not drafting:
                break
            drafts = self._step([reqs[i] for i in drafting], step, starts if step == 0 else None, likeliest)
            for i, draft in zip(drafting, drafts, strict=True):
                if draft == NO_TOKEN:  # the drafts before may end the output, and nothing can follow them
                    counts[i] = step
        return [req.token_ids[req.num_tokens :][:count].tolist() for req, count in zip(reqs, counts, strict=True)]

    def _step(self, reqs: list[Req], step: int, starts: list[int] | None, likeliest: bool) -> list[int]:
        """Write draft number `step` of each request behind the ones before it, and return them; NO_TOKEN for none. Computes
        its last token so far and, with `starts`, the tokens from there on."""
        ends = [req.num_tokens + step for req in reqs]
        starts = starts or [end - 1 for end in ends]
        with interruptible():
            if sum(ends) - sum(starts) <= MOST_ROWS:
                logits, slots = self._decode(reqs, starts, ends, likeliest)
            else:
                logits, slots = self._extend(reqs, starts, ends)
            rows: Any = [Ahead(req, step) for req in reqs] if step else reqs
            drafts: list[int] = self._sampler.sample(logits, rows).tolist()
        stamps = []
        for req, start, end, draft in zip(reqs, starts, ends, drafts, strict=True):
            req.token_ids[end] = draft
            stamps.append(self._prefixes[req].of(req, start, end))
        self._stamps[slots] = stamps[0] if len(stamps) == 1 else np.concatenate(stamps)
        return drafts

    def _decode(
        self, reqs: list[Req], starts: list[int], ends: list[int], likeliest: bool
    ) -> tuple[torch.Tensor | Likeliest, np.ndarray]:
        """One row for each missing token, as in a VERIFY. Returns the logits of each request's last, and the slots."""
        counts = np.array(ends) - np.array(starts)
        rows = np.array([req.req_pool_idx for req in reqs], dtype=np.int32)
        last = None
        if len(reqs) == counts.sum():
            positions = np.array(starts)
            tokens = np.array([req.token_ids.item(start) for req, start in zip(reqs, starts, strict=True)])
        else:
            positions = np.concatenate([*map(np.arange, starts, ends)])
            tokens = np.concatenate([r.token_ids[start:end] for r, start, end in zip(reqs, starts, ends, strict=True)])
            rows, last = rows.repeat(counts), torch.from_numpy(counts.cumsum() - 1)
        slots = self._cache.rows[rows, positions]
        lens = torch.from_numpy((positions + 1).astype(np.int32))
        of_rows = (torch.from_numpy(tokens), torch.from_numpy(rows), lens, torch.from_numpy(slots))
        logits, _ = self._runner.forward(DecodeRows(*of_rows, only_likeliest=likeliest), ForwardMode.DECODE)
        if last is None:
            return logits, slots
        if isinstance(logits, Likeliest):
            return Likeliest(logits.token_ids[last], logits.logits[last]), slots
        return logits[last], slots

    def _extend(
        self, reqs: list[Req], starts: list[int], ends: list[int]
    ) -> tuple[torch.Tensor | Likeliest, np.ndarray]:
        """As `_decode`, in an EXTEND pass: faster where much is missing, such as a prompt."""
        batch = Batch.of_spans(reqs, ForwardMode.EXTEND, starts, ends, self._cache)
        batch.adapter_places = None
        logits, _ = self._runner.forward(batch, ForwardMode.EXTEND)
        return logits, batch.out_cache_loc.numpy()

    def _first_missing(self, req: Req) -> int:
        """The first position without this model's K/V, or the newest token's: it is computed in any case."""
        prefix = self._prefixes.get(req)
        if prefix is None:
            prefix = self._prefixes[req] = PrefixStamps(len(req.token_ids))
        last = req.num_tokens - 1
        missing = self._stamps[self._cache.rows[req.req_pool_idx, :last]] != prefix.of(req, 0, last)
        return int(missing.argmax()) if missing.any() else last
