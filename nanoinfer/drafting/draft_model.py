"""DraftModel: a smaller model with the same vocabulary drafts token by token; its K/V is under the same slot numbers."""

from collections.abc import Sequence
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
        counts, starts = list(most), [self._first_missing(req) for req in reqs]
        with interruptible():
            self._draft(list(reqs), counts, starts)
        for req, start, count in zip(reqs, starts, counts, strict=True):
            end = req.num_tokens + max(count - 1, 0)  # the last draft has no K/V yet
            self._stamps[self._cache.rows[req.req_pool_idx, start:end]] = self._prefixes[req].of(req, start, end)
        return [req.token_ids[req.num_tokens :][:count].tolist() for req, count in zip(reqs, counts, strict=True)]

    def _draft(self, reqs: list[Req], counts: list[int], starts: list[int]) -> None:
        """Write drafts behind the tokens of each request, `counts[i]` of them. Lowers the count of a request whose grammar
        is complete before. The first step computes the tokens from `starts[i]` on, each other one the draft before it."""
        likeliest = only_likeliest(reqs)
        rows = np.array([req.req_pool_idx for req in reqs], dtype=np.int32)
        ends = np.array([req.num_tokens for req in reqs])
        asked = list(range(len(reqs)))
        logits = self._first_step(reqs, starts, ends, rows, likeliest)
        # How many rows the last step had, if it was a DECODE of one row per request, which can be moved on.
        last = len(reqs) if sum(starts) + len(reqs) == ends.sum() and len(reqs) <= MOST_ROWS else 0
        for step in range(1, max(counts) + 1):
            if isinstance(logits, Likeliest):
                drafts = logits.token_ids.numpy()
            else:
                drafts = self._sampler.sample(logits, [Ahead(reqs[i], step - 1) for i in asked]).numpy()  # type: ignore
            for i, draft in zip(asked, drafts.tolist(), strict=True):
                reqs[i].token_ids[reqs[i].num_tokens + step - 1] = draft
                if draft == NO_TOKEN:
                    counts[i] = step - 1
            staying = [at for at, i in enumerate(asked) if counts[i] > step]
            if not staying:
                return
            if len(staying) < len(asked):
                asked, rows, ends, drafts = [asked[at] for at in staying], rows[staying], ends[staying], drafts[staying]
            logits = self._decode(drafts, rows, ends + (step - 1), likeliest, again=len(rows) == last)
            last = len(rows)

    def _first_step(
        self, reqs: list[Req], starts: list[int], ends: np.ndarray, rows: np.ndarray, likeliest: bool
    ) -> torch.Tensor | Likeliest:
        """The logits of each request's newest token. Computes its missing tokens: as rows of a DECODE, like a VERIFY, or
        in an EXTEND if there are many, such as a prompt."""
        of_each = ends - np.array(starts)
        if of_each.sum() > MOST_ROWS:
            batch = Batch.of_spans(reqs, ForwardMode.EXTEND, starts, ends.tolist(), self._cache)
            batch.adapter_places = None
            return self._runner.forward(batch, ForwardMode.EXTEND)[0]
        tokens = np.concatenate(
            [req.token_ids[start : req.num_tokens] for req, start in zip(reqs, starts, strict=True)]
        )
        if len(tokens) == len(reqs):
            return self._decode(tokens, rows, ends - 1, likeliest)
        positions = np.concatenate([*map(np.arange, starts, ends)])
        logits = self._decode(tokens, rows.repeat(of_each), positions, likeliest)
        last = torch.from_numpy(of_each.cumsum() - 1)
        if isinstance(logits, Likeliest):
            return Likeliest(logits.token_ids[last], logits.logits[last])
        return logits[last]

    def _decode(
        self, tokens: np.ndarray, rows: np.ndarray, positions: np.ndarray, likeliest: bool, again: bool = False
    ) -> torch.Tensor | Likeliest:
        """Logits of one token for each of `rows`, at these positions, all [T]. `again`: the last pass was that of the same
        rows, one position before."""
        slots, captured = self._cache.rows[rows, positions], self._runner.captured
        if again and captured is not None and captured.can_advance(len(rows)):
            return captured.advance(tokens, slots)
        lens = (positions + 1).astype(np.int32)
        batch = DecodeRows(
            torch.from_numpy(tokens),
            torch.from_numpy(rows),
            torch.from_numpy(lens),
            torch.from_numpy(slots),
            only_likeliest=likeliest,
        )
        return self._runner.forward(batch, ForwardMode.DECODE)[0]

    def _first_missing(self, req: Req) -> int:
        """The first position without this model's K/V, or the newest token's: it is computed in any case."""
        prefix = self._prefixes.get(req)
        if prefix is None:
            prefix = self._prefixes[req] = PrefixStamps(len(req.token_ids))
        last = req.num_tokens - 1
        missing = self._stamps[self._cache.rows[req.req_pool_idx, :last]] != prefix.of(req, 0, last)
        return int(missing.argmax()) if missing.any() else last
