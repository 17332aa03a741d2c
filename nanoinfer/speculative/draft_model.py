"""DraftModel: a smaller model with the same vocabulary drafts token by token; its K/V is under the same slot numbers."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np
import torch

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.model.forward_batch import ForwardBatch, ForwardMode
from nanoinfer.model.layers.logits_processor import Likeliest
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.requests.req import NO_TOKEN, DraftView, Req
from nanoinfer.requests.seeds import uniform
from nanoinfer.sampling.sampler import Sampler, chooses_by_itself, likeliest_of
from nanoinfer.scheduler.batch import Batch, only_likeliest

FACTOR = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2 ** 64
MOST_ROWS = 64  # with more tokens to catch up on, an EXTEND is faster than a DECODE of all


class DraftSampler(Sampler):
    """Chooses drafts as a Sampler chooses tokens. Where logits hold NaN or infinity, the request gets NO_TOKEN and nothing
    is raised: a draft may be missing."""

    def sample(self, logits: torch.Tensor | Likeliest, reqs: Sequence[Req]) -> torch.Tensor:
        """As in Sampler. No logits processor gets to see logits that are not finite."""
        if isinstance(logits, Likeliest) or all(chooses_by_itself(req) for req in reqs):
            return super().sample(logits, reqs)
        finite = likeliest_of(logits).logits.isfinite()
        if finite.all():
            return super().sample(logits, reqs)
        rows = finite.nonzero()[:, 0].tolist()
        token_ids = torch.full((len(reqs),), NO_TOKEN)
        if rows:
            token_ids[rows] = super().sample(logits[rows], [reqs[row] for row in rows]).cpu()
        return token_ids

    def _checked(self, token_ids: torch.Tensor, numbers: torch.Tensor, reqs: Sequence[Req]) -> torch.Tensor:
        return token_ids.where(numbers.isfinite(), NO_TOKEN)


class PrefixStamps:
    """The stamp of position `i` is a hash of the tokens up to it: K/V depends on them and on nothing else.

    With `h[i] = (h[i - 1] + token + 1) * FACTOR` modulo 2 ** 64, the stamps of new tokens follow from the last one. Zero is
    no stamp. Two prefixes that have the same stamp by chance would cost a few wrong drafts, and nothing else.
    """

    def __init__(self, capacity: int):
        self._stamps = np.zeros(capacity + 1, dtype=np.uint64)  # the first is that of no tokens
        self._tokens = np.full(capacity, -1, dtype=np.int64)  # whose stamps these are
        self._size = 0

    def of(self, req: Req, start: int, end: int) -> np.ndarray:
        """The stamps of the positions `start .. end - 1` of `req`, uint64, drafts behind its tokens included."""
        known = min(self._size, end)
        recent = max(known - 128, 0)  # drafts are replaced, tokens never; and there are at most 64 drafts
        differ = self._tokens[recent:known] != req.token_ids[recent:known]
        if differ.any():
            known = recent + int(differ.argmax())
        stamp = int(self._stamps[known])
        for i, token in enumerate(req.token_ids[known:end].tolist(), start=known):
            stamp = (stamp + token + 1) * FACTOR & 0xFFFFFFFFFFFFFFFF
            self._stamps[i + 1] = stamp
            self._tokens[i] = token
        self._size = max(known, end)
        return self._stamps[start + 1 : end + 1]


class DraftModel:
    """Runs the draft model of `runner`, whose K/V pool has a slot for each of the large model's, and shares its rows.

    So the scheduler's allocation, retraction, eviction and prefix hits hold for both, and nothing has to be told to this
    drafter. It must only know which slots have its K/V of the tokens that are there now. For that, it stamps a slot when it
    fills it (see PrefixStamps), and computes what has no stamp, or another one. That is the prompt the first time, and
    one or two tokens from then on.

    The drafts are sampled with the request's own parameters and random numbers: if the two models agree on the
    probabilities, they agree on the token. A request gets no draft where this model's logits are NaN or infinity, and none
    behind it: they are only guesses, and no reason to end a request. `sampler`: one for drafts.

    `chunk_size`: maximum number of tokens in a pass that catches up on prompts; None: no limit.
    """

    def __init__(self, runner: ModelRunner, cache: CacheManager, sampler: Sampler, chunk_size: int | None = None):
        self._runner, self._cache, self._sampler = runner, cache, sampler
        self._chunk_size = sys.maxsize if chunk_size is None else chunk_size
        self._stamps = np.zeros(runner.token_to_kv_pool.size, dtype=np.uint64)
        self._prefixes: WeakKeyDictionary[Req, PrefixStamps] = WeakKeyDictionary()

    def slot_buffers(self) -> Sequence[torch.Tensor]:
        """All that it keeps by slot, `[N, ...]` each: K/V, and the stamps that say whose it is, int64 `[N]`."""
        stamps = torch.from_numpy(self._stamps.view(np.int64))
        return *self._runner.token_to_kv_pool.kv_storage.slot_buffers(), stamps

    def propose(self, reqs: Sequence[Req], most: Sequence[int]) -> list[list[int]]:
        counts, starts = list(most), [self._first_missing(req) for req in reqs]
        have_all = self._draft(list(reqs), counts, starts)
        for i, (req, start, count) in enumerate(zip(reqs, starts, counts, strict=True)):
            end = req.num_tokens + (count if i in have_all else max(count - 1, 0))  # up to which there is K/V
            self._stamps[self._cache.rows[req.req_pool_idx, start:end]] = self._prefixes[req].of(req, start, end)
        return [req.token_ids[req.num_tokens :][:count].tolist() for req, count in zip(reqs, counts, strict=True)]

    def _draft(self, reqs: list[Req], counts: list[int], starts: list[int]) -> frozenset[int]:
        """Write drafts behind the tokens of each request, `counts[i]` of them. Lowers the count of a request whose grammar
        is complete before, or whose logits are no numbers. The first step computes the tokens from `starts[i]` on, each
        other one the draft before it. Returns the requests whose last draft has K/V, too."""
        likeliest, steps = only_likeliest(reqs), 0  # those that are made
        rows = np.array([req.req_pool_idx for req in reqs], dtype=np.int32)
        ends = np.array([req.num_tokens for req in reqs])
        can_run_multi_step = all(chooses_by_itself(req) for req in reqs)
        while asked := [i for i, count in enumerate(counts) if count > steps]:
            ahead = [DraftView(reqs[i], steps) for i in asked]
            if steps or sum(starts) + len(reqs) == ends.sum():
                tokens = np.array([req.token_ids.item(req.num_tokens - 1) for req in ahead])
                batch = self._decode(tokens, rows[asked], ends[asked] - 1 + steps, likeliest)
                if can_run_multi_step and self._run_multi_step(batch, ahead, asked, counts):
                    return frozenset(asked)
                logits = self._runner.forward_batch(batch).to_sample
            else:
                logits = self._first_step(reqs, starts, ends, rows, likeliest)
            drafts: list[int] = self._sampler.sample(logits, ahead).tolist()  # type: ignore[arg-type]
            for i, req, draft in zip(asked, ahead, drafts, strict=True):
                req.token_ids[req.num_tokens] = draft
                if draft == NO_TOKEN:
                    counts[i] = steps
            steps += 1
        return frozenset()

    def _run_multi_step(
        self, batch: ForwardBatch, reqs: Sequence[DraftView], asked: Sequence[int], total: list[int]
    ) -> bool:
        """Optimisation: all drafts of `reqs` that are missing, without returning to Python between the passes, the first of
        which is `batch`. `total[asked[i]]` drafts are wanted of `reqs[i]`, and lowered as in `_draft`. False if nothing is
        captured for it.

        One more pass computes the K/V of the last drafts. If they are all accepted, the next call need not catch up, which
        takes Python longer than this pass."""
        counts = [total[i] - req.drafts for i, req in zip(asked, reqs, strict=True)]
        if (captured := self._runner.captured) is None:
            return False
        steps = max(counts) + 1
        if batch.only_likeliest:
            numbers = np.zeros((steps, len(reqs)))
        else:
            seeds = [req.seed for req in reqs] * steps
            indices = [req.num_output_tokens + step for step in range(steps) for req in reqs]
            numbers = uniform(seeds, indices).reshape(steps, len(reqs))
        temperatures = np.array([req.params.temperature for req in reqs], dtype=np.float32)
        tokens = captured.run_multi_step(batch, np.array(counts) + 1, temperatures, numbers)
        if tokens is None:
            return False
        for i, (req, count) in enumerate(zip(reqs, counts, strict=True)):
            drafts = tokens[:count, i]
            req.token_ids[req.num_tokens : req.num_tokens + count] = drafts
            if (missing := drafts == NO_TOKEN).any():
                total[asked[i]] = req.drafts + int(missing.argmax())
        return True

    def _first_step(
        self, reqs: list[Req], starts: list[int], ends: np.ndarray, rows: np.ndarray, likeliest: bool
    ) -> torch.Tensor | Likeliest:
        """The logits of each request's newest token. Computes its missing tokens: in a DECODE, as a VERIFY does, or in
        EXTENDs if there are many, such as a prompt."""
        new_lens = ends - np.array(starts)
        if new_lens.sum() > min(MOST_ROWS, self._chunk_size):
            return self._extend(reqs, starts, ends.tolist())
        tokens = np.concatenate(
            [req.token_ids[start : req.num_tokens] for req, start in zip(reqs, starts, strict=True)]
        )
        positions = np.concatenate([*map(np.arange, starts, ends)])
        batch = self._decode(tokens, rows.repeat(new_lens), positions, likeliest)
        logits = self._runner.forward_batch(batch).to_sample
        last = torch.from_numpy(new_lens.cumsum() - 1)
        if isinstance(logits, Likeliest):
            return Likeliest(logits.token_ids[last], logits.logits[last])
        return logits[last]

    def _extend(self, reqs: list[Req], starts: list[int], ends: list[int]) -> torch.Tensor:
        """Compute the tokens `starts[i] .. ends[i] - 1` of each request, in passes of at most `chunk_size` tokens. The
        logits of each one's last token, [B, V]."""
        last_logits: list[torch.Tensor] = []
        for spans in chunks(starts, ends, self._chunk_size):
            places, begins, stops = zip(*spans, strict=True)
            batch = Batch.of_spans([reqs[i] for i in places], ForwardMode.EXTEND, begins, stops, self._cache)
            logits = self._runner.forward_batch(replace(batch, adapter_slots=None)).logits
            last_logits.append(logits[[row for row, (i, _, stop) in enumerate(spans) if stop == ends[i]]])
        return torch.cat(last_logits)

    def _decode(self, tokens: np.ndarray, rows: np.ndarray, positions: np.ndarray, likeliest: bool) -> ForwardBatch:
        """The pass over these tokens of the requests in `rows`, at these positions, all [T]."""
        return ForwardBatch(
            forward_mode=ForwardMode.DECODE,
            input_ids=torch.from_numpy(tokens),
            req_pool_indices=torch.from_numpy(rows),
            seq_lens=torch.from_numpy((positions + 1).astype(np.int32)),
            out_cache_loc=torch.from_numpy(self._cache.rows[rows, positions]),
            only_likeliest=likeliest,
            size_varies=True,
        )

    def _first_missing(self, req: Req) -> int:
        """The first position without this model's K/V, or the newest token's: it is computed in any case."""
        prefix = self._prefixes.get(req)
        if prefix is None:
            prefix = self._prefixes[req] = PrefixStamps(len(req.token_ids))
        last = req.num_tokens - 1
        missing = self._stamps[self._cache.rows[req.req_pool_idx, :last]] != prefix.of(req, 0, last)
        return int(missing.argmax()) if missing.any() else last


def chunks(starts: Sequence[int], ends: Sequence[int], most: int) -> Iterator[list[tuple[int, int, int]]]:
    """The tokens `starts[i] .. ends[i] - 1` of all `i`, in order, in groups of at most `most`: spans (i, start, end)."""
    spans: list[tuple[int, int, int]] = []
    room = most
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        while start < end:
            stop = min(end, start + room)
            spans.append((i, start, stop))
            start, room = stop, room - (stop - start)
            if not room:
                yield spans
                spans, room = [], most
    if spans:
        yield spans
