"""Sampler: chooses a token for each row of logits, by the SamplingParams of that row's request; all rows at once."""

from collections.abc import Sequence
from math import isfinite

import numpy as np
import torch

from nanoinfer.model.layers.logits_processor import Likeliest
from nanoinfer.requests.req import NO_TOKEN, Req
from nanoinfer.sampling.logits_processors import adjusts_logits, process_logits
from nanoinfer.sampling.random_numbers import uniform


class Sampler:
    """It has no state: everything a row needs is in its Req. A row's result does not depend on the other rows."""

    def sample(self, logits: torch.Tensor | Likeliest, reqs: Sequence[Req]) -> torch.Tensor:
        """Choose the next token of each request, int64 [B], from `logits` [B, V], which are not changed; or take the tokens
        that a pass has found already. NO_TOKEN for a request whose grammar and parameters leave no token to choose.

        RuntimeError naming the request whose logits hold NaN or +infinity, since no token can be chosen from them, or
        whose logits processor fails (see `process_logits`).
        """
        likeliest, largest = logits if isinstance(logits, Likeliest) else _likeliest(logits)
        for req, logit in zip(reqs, largest.tolist(), strict=True):
            if not isfinite(logit):
                raise RuntimeError(f"request {req.request_id}: the model's logits hold NaN or infinity")
        if isinstance(logits, Likeliest) or all(req.params.greedy and not adjusts_logits(req) for req in reqs):
            return likeliest
        adjusted, stuck = any(adjusts_logits(req) for req in reqs), []
        scores = logits.to(torch.float32, copy=adjusted)
        if adjusted:
            process_logits(scores, reqs)
            likeliest, largest = _likeliest(scores)
            stuck = [row for row, score in enumerate(largest.tolist()) if score == -torch.inf]
        drawn = [row for row, req in enumerate(reqs) if not req.params.greedy and row not in stuck]
        if len(drawn) == len(reqs):
            return _draw(scores, reqs)
        if drawn:
            likeliest[drawn] = _draw(scores[drawn], [reqs[row] for row in drawn])
        if stuck:
            likeliest[stuck] = NO_TOKEN
        return likeliest

    def logprobs(
        self, logits: torch.Tensor, token_ids: torch.Tensor, reqs: Sequence[Req]
    ) -> list[dict[int, float] | None]:
        """One dict {token id: log-probability} per request: the sampled token first, then the `params.logprobs` likeliest.

        None for a request that wants none. They are the model's own, before bias, penalties, grammar and temperature.
        """
        tokens = token_ids.tolist()
        wanted = [i for i, req in enumerate(reqs) if req.params.logprobs is not None and tokens[i] != NO_TOKEN]
        result: list[dict[int, float] | None] = [None] * len(reqs)
        if not wanted:
            return result
        table = logits[wanted].float().log_softmax(dim=-1)
        chosen = token_ids[wanted]
        chosen_logprobs = table.gather(1, chosen[:, None])[:, 0].tolist()
        for row, token, logprob, line in zip(wanted, chosen.tolist(), chosen_logprobs, table, strict=True):
            # Each by itself: which of several equal ones topk finds depends on how many it looks for.
            values, ids = line.topk(reqs[row].params.logprobs or 0)
            result[row] = {token: logprob, **dict(zip(ids.tolist(), values.tolist(), strict=True))}
        return result


def _likeliest(logits: torch.Tensor) -> Likeliest:
    """Of each row of `logits` [B, V]. Ties go to the first; NaN counts as the largest."""
    if logits.device.type != "cpu":
        likeliest = logits.argmax(dim=-1)
        return Likeliest(likeliest, logits.gather(1, likeliest[:, None])[:, 0].float())
    scores = logits.float().numpy()  # on a CPU, numpy's argmax is vectorised and torch's is not
    where = scores.argmax(axis=-1)
    return Likeliest(torch.from_numpy(where), torch.from_numpy(scores[np.arange(len(scores)), where]))


def _draw(scores: torch.Tensor, reqs: Sequence[Req]) -> torch.Tensor:
    """Apply temperature, top-k, top-p and min-p, then draw one token per row by inverting the cumulative distribution."""

    def column(values: list[float]) -> torch.Tensor:
        return torch.from_numpy(np.array(values, dtype=np.float32)[:, None]).to(scores.device)

    params = [req.params for req in reqs]
    # Subtract the maximum first: dividing by a tiny temperature can then overflow to -inf, but never give NaN.
    scores = (scores - scores.amax(dim=-1, keepdim=True)) / column([p.temperature for p in params])
    rows = [row for row, p in enumerate(params) if 0 < p.top_k < scores.shape[-1]]
    if rows:
        scores[rows] = keep_top_k(scores[rows], [params[row].top_k for row in rows])
    rows = [row for row, p in enumerate(params) if p.top_p < 1.0]
    if rows:
        scores[rows] = keep_top_p(scores[rows], column([p.top_p for p in params])[rows])
    rows = [row for row, p in enumerate(params) if p.min_p > 0.0]
    if rows:
        scores[rows] = keep_min_p(scores[rows], column([p.min_p for p in params])[rows])
    return _invert(scores, uniform([req.seed for req in reqs], [req.num_output_tokens for req in reqs]))


def _invert(scores: torch.Tensor, numbers: np.ndarray) -> torch.Tensor:
    """Of each row of `scores` [b, V], none above 0, the first token up to which the probabilities add up to more than the
    row's number in `numbers` [b]."""
    if scores.device.type != "cpu":
        cumulative = scores.double().exp().cumsum(dim=-1)
        total = cumulative[:, -1:]
        target = torch.from_numpy(numbers).to(scores.device)[:, None] * total
        target = target.minimum(total.nextafter(torch.zeros_like(total)))  # not past the last token, by rounding
        return torch.searchsorted(cumulative, target, right=True)[:, 0]
    rows = np.exp(scores.numpy()).cumsum(axis=-1, dtype=np.float64)  # on a CPU, numpy is faster for a few rows
    targets = np.minimum(numbers * rows[:, -1], np.nextafter(rows[:, -1], 0.0))
    return torch.tensor([int(row.searchsorted(target, "right")) for row, target in zip(rows, targets, strict=True)])


def keep_top_k(scores: torch.Tensor, k: list[int]) -> torch.Tensor:
    """Set all `scores` [b, V] to -inf but the `k[row]` largest ones, and any that equal the smallest of those."""
    largest = scores.topk(max(k), dim=-1).values
    threshold = largest.gather(1, torch.tensor(k, device=scores.device)[:, None] - 1)
    return scores.masked_fill(scores < threshold, -torch.inf)


def keep_top_p(scores: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Nucleus sampling (Holtzman et al., 2020): keep the smallest set of likeliest tokens whose total probability reaches
    `top_p` [b, 1], and set all other `scores` [b, V] to -inf. The likeliest token is always kept."""
    ascending, order = scores.sort(dim=-1)
    unlikely = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - top_p
    unlikely[:, -1] = False
    return scores.masked_fill(unlikely.scatter(1, order, unlikely), -torch.inf)


def keep_min_p(scores: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """Set the `scores` [b, V] of tokens to -inf that are less likely than `min_p` [b, 1] times the likeliest one."""
    probabilities = scores.softmax(dim=-1)
    return scores.masked_fill(probabilities < min_p * probabilities.amax(dim=-1, keepdim=True), -torch.inf)
