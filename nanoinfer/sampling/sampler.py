"""Sampler: chooses a token for each row of logits, by the SamplingParams of that row's request; all rows at once."""

from collections.abc import Sequence
from math import isfinite

import numpy as np
import torch

from nanoinfer.model.kernels.base import Kernels
from nanoinfer.model.kernels.torch_native import TorchKernels
from nanoinfer.model.layers.logits_processor import Likeliest
from nanoinfer.requests.req import NO_TOKEN, Req, adjusts_logits
from nanoinfer.requests.seeds import uniform
from nanoinfer.sampling.filters import keep_likely
from nanoinfer.sampling.logits_processors import process_logits


class Sampler:
    """It has no state: all it needs is in the requests. A request's token does not depend on the others in the pass.

    `kernels`: what draws the tokens; None for TorchKernels.
    """

    def __init__(self, kernels: Kernels | None = None):
        self.kernels = TorchKernels() if kernels is None else kernels

    def sample(self, logits: torch.Tensor | Likeliest, reqs: Sequence[Req]) -> torch.Tensor:
        """Choose the next token of each request, int64 [B], from `logits` [B, V], which are not changed; or take the tokens
        that a pass has found already. NO_TOKEN for a request whose grammar and parameters leave no token to choose.

        RuntimeError naming the request whose logits hold NaN or +infinity, since no token can be chosen from them, or
        whose logits processor fails (see `process_logits`).
        """
        if isinstance(logits, Likeliest):
            return self._checked(logits.token_ids, logits.logits, reqs)
        if all(chooses_by_itself(req) for req in reqs):
            return self._draw(logits.float(), reqs)
        likeliest, largest = likeliest_of(logits)
        _check_finite(largest.tolist(), reqs)
        adjusted, stuck = any(adjusts_logits(req) for req in reqs), []
        scores = logits.to(torch.float32, copy=adjusted)
        if adjusted:
            process_logits(scores, reqs)
            likeliest, largest = likeliest_of(scores)
            stuck = [row for row, score in enumerate(largest.tolist()) if score == -torch.inf]
        drawn = [row for row, req in enumerate(reqs) if not req.params.greedy and row not in stuck]
        if len(drawn) == len(reqs):
            return self._draw(scores, reqs)
        if drawn:
            likeliest[drawn] = self._draw(scores[drawn], [reqs[row] for row in drawn])
        if stuck:
            likeliest[stuck] = NO_TOKEN
        return likeliest

    def _draw(self, scores: torch.Tensor, reqs: Sequence[Req]) -> torch.Tensor:
        """Apply temperature, top-k, top-p and min-p to `scores` [b, V], then draw each request's token by the random number
        of its seed and of how many tokens it has got. At temperature 0 the likeliest is taken, whatever the number."""
        numbers = uniform([req.seed for req in reqs], [req.num_output_tokens for req in reqs])
        temperatures = np.array([req.params.temperature for req in reqs], dtype=np.float32)
        filtered = [row for row, req in enumerate(reqs) if not (req.params.greedy or req.params.draws_from_all)]
        if filtered:
            scores = scores.clone()
            scores[filtered] = keep_likely(scores[filtered], [reqs[row].params for row in filtered])
            temperatures[filtered] = 1.0  # they are divided already
        token_ids, totals = self.kernels.draw(scores, temperatures, numbers)
        return self._checked(token_ids, totals, reqs)

    def _checked(self, token_ids: torch.Tensor, numbers: torch.Tensor, reqs: Sequence[Req]) -> torch.Tensor:
        """`token_ids`, as far as their `numbers` are finite."""
        _check_finite(numbers.tolist(), reqs)
        return token_ids

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


def likeliest_of(logits: torch.Tensor) -> Likeliest:
    """Of each row of `logits` [B, V]. Ties go to the first; NaN counts as the largest."""
    if logits.device.type != "cpu":
        likeliest = logits.argmax(dim=-1)
        return Likeliest(likeliest, logits.gather(1, likeliest[:, None])[:, 0].float())
    scores = logits.float().numpy()  # on a CPU, numpy's argmax is vectorised and torch's is not
    where = scores.argmax(axis=-1)
    return Likeliest(torch.from_numpy(where), torch.from_numpy(scores[np.arange(len(scores)), where]))


def chooses_by_itself(req: Req) -> bool:
    """Whether the request's next tokens depend on nothing but logits, temperature and random numbers: Kernels.draw chooses
    them."""
    return (req.params.greedy or req.params.draws_from_all) and not adjusts_logits(req)


def _check_finite(numbers: Sequence[float], reqs: Sequence[Req]) -> None:
    """RuntimeError naming the request whose number is NaN or infinity, because its logits hold it."""
    for req, number in zip(reqs, numbers, strict=True):
        if not isfinite(number):
            raise RuntimeError(f"request {req.request_id}: the model's logits hold NaN or infinity")
