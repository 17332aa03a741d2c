"""Sampler: logits → token ids, each row by its own request's SamplingParams, all rows at once."""

from collections.abc import Sequence

import numpy as np
import torch

from nanoinfer.requests.req import Req
from nanoinfer.sampling.random_numbers import uniform


class Sampler:
    """Stateless: what a row needs is in its Req. A row's result does not depend on the other rows."""

    def sample(self, logits: torch.Tensor, reqs: Sequence[Req]) -> torch.Tensor:
        """`logits` [B, V] (not changed) → the next token of each request, int64 [B].

        RuntimeError naming the request whose logits hold NaN or +infinity: no token can be chosen by them.
        """
        likeliest, largest = _likeliest(logits)
        broken = np.flatnonzero(~np.isfinite(largest))
        if broken.size:
            raise RuntimeError(f"request {reqs[broken[0]].request_id}: the model's logits hold NaN or infinity")
        if all(req.params.greedy and not _adjusts_logits(req) for req in reqs):
            return likeliest
        scores = logits.to(torch.float32, copy=True)
        adjusted = [(row, req) for row, req in enumerate(reqs) if _adjusts_logits(req)]
        if adjusted:
            _add_logit_bias(scores, adjusted)
            _penalise_repetition(scores, adjusted)
            _penalise_frequency_and_presence(scores, adjusted)
            _forbid_stopping_early(scores, adjusted)
        token_ids = scores.argmax(dim=-1)
        drawn = [row for row, req in enumerate(reqs) if not req.params.greedy]
        if drawn:
            token_ids[drawn] = _draw(scores[drawn], [reqs[row] for row in drawn])
        return token_ids

    def logprobs(
        self, logits: torch.Tensor, token_ids: torch.Tensor, reqs: Sequence[Req]
    ) -> list[dict[int, float] | None]:
        """Per request {token id: log-probability}: the sampled token first, then the `params.logprobs` likeliest.

        None where the request wants none. Of the model's own distribution: before bias, penalties and temperature.
        """
        wanted = [row for row, req in enumerate(reqs) if req.params.logprobs is not None]
        result: list[dict[int, float] | None] = [None] * len(reqs)
        if not wanted:
            return result
        table = logits[wanted].float().log_softmax(dim=-1)
        chosen = token_ids[wanted]
        chosen_logprobs = table.gather(1, chosen[:, None])[:, 0].tolist()
        top_values, top_ids = table.topk(max(reqs[row].params.logprobs or 0 for row in wanted), dim=-1)
        likeliest = zip(top_ids.tolist(), top_values.tolist(), strict=True)
        for row, token, logprob, (ids, values) in zip(wanted, chosen.tolist(), chosen_logprobs, likeliest, strict=True):
            k = reqs[row].params.logprobs
            result[row] = {token: logprob, **dict(zip(ids[:k], values[:k], strict=True))}
        return result


def _likeliest(logits: torch.Tensor) -> tuple[torch.Tensor, np.ndarray]:
    """The largest logit of each row [B], and where it is: int64 [B]. The first of equal ones; a NaN counts as larger."""
    if logits.device.type != "cpu":
        likeliest = logits.argmax(dim=-1)
        return likeliest, logits.gather(1, likeliest[:, None])[:, 0].float().cpu().numpy()
    scores = logits.float().numpy()  # numpy's argmax is vectorised, which torch's on a CPU is not
    where = scores.argmax(axis=-1)
    return torch.from_numpy(where), scores[np.arange(len(scores)), where]


def _adjusts_logits(req: Req) -> bool:
    p = req.params
    return bool(
        p.logit_bias
        or p.repetition_penalty != 1.0
        or p.frequency_penalty
        or p.presence_penalty
        or req.num_output_tokens < p.min_new_tokens
    )


def _flat(pairs: list[tuple[int, np.ndarray]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Several (row, token ids) as two index tensors of equal length: rows and token ids."""
    rows = np.repeat([row for row, _ in pairs], [len(tokens) for _, tokens in pairs])
    tokens = np.concatenate([tokens for _, tokens in pairs])
    return torch.from_numpy(rows).to(device), torch.from_numpy(tokens.astype(np.int64)).to(device)


def _add_logit_bias(scores: torch.Tensor, reqs: list[tuple[int, Req]]) -> None:
    biases = [(row, req.params.logit_bias) for row, req in reqs if req.params.logit_bias]
    if biases:
        index = _flat([(row, np.array(list(bias))) for row, bias in biases], scores.device)
        values = np.concatenate([list(bias.values()) for _, bias in biases])
        scores[index] += torch.from_numpy(values).to(scores)


def _penalise_repetition(scores: torch.Tensor, reqs: list[tuple[int, Req]]) -> None:
    """Keskar et al., 2019, as in Hugging Face: tokens of prompt and output, however often they occurred."""
    penalised = [(row, req) for row, req in reqs if req.params.repetition_penalty != 1.0]
    if penalised:
        index = _flat([(row, np.unique(req.token_ids[: req.num_tokens])) for row, req in penalised], scores.device)
        penalty = torch.ones(len(scores), device=scores.device)
        penalty[[row for row, _ in penalised]] = torch.tensor(
            [req.params.repetition_penalty for _, req in penalised], device=scores.device
        )
        seen, factor = scores[index], penalty[index[0]]
        scores[index] = torch.where(seen < 0, seen * factor, seen / factor)


def _penalise_frequency_and_presence(scores: torch.Tensor, reqs: list[tuple[int, Req]]) -> None:
    """OpenAI's definition: `frequency_penalty` times the token's count in the output, `presence_penalty` once."""
    counted = []
    amounts = []
    for row, req in reqs:
        params = req.params
        if params.frequency_penalty or params.presence_penalty:
            tokens, counts = np.unique(req.token_ids[req.prompt_len : req.num_tokens], return_counts=True)
            counted.append((row, tokens))
            amounts.append(params.frequency_penalty * counts + params.presence_penalty)
    if counted:
        scores[_flat(counted, scores.device)] -= torch.from_numpy(np.concatenate(amounts)).to(scores)


def _forbid_stopping_early(scores: torch.Tensor, reqs: list[tuple[int, Req]]) -> None:
    early = [
        (row, np.array(sorted(req.stop_token_ids)))
        for row, req in reqs
        if req.num_output_tokens < req.params.min_new_tokens
    ]
    if early:
        scores[_flat(early, scores.device)] = -torch.inf


def _draw(scores: torch.Tensor, reqs: Sequence[Req]) -> torch.Tensor:
    """Temperature, top-k, top-p, min-p, then one draw a row by inverting the cumulative distribution."""

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=scores.dtype, device=scores.device)[:, None]

    params = [req.params for req in reqs]
    # Relative to the maximum first: dividing by a tiny temperature can then overflow to -inf, but never to NaN.
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
    cumulative = scores.softmax(dim=-1).double().cumsum(dim=-1)
    numbers = uniform([req.seed for req in reqs], [req.num_output_tokens for req in reqs])
    total = cumulative[:, -1:]
    target = torch.from_numpy(numbers).to(scores.device)[:, None] * total
    target = target.minimum(total.nextafter(torch.zeros_like(total)))  # rounding must not lead past the last token
    return torch.searchsorted(cumulative, target, right=True)[:, 0]


def keep_top_k(scores: torch.Tensor, k: list[int]) -> torch.Tensor:
    """`scores` [b, V] with all but the `k[row]` largest (and those equal to the last of them) set to -inf."""
    largest = scores.topk(max(k), dim=-1).values
    threshold = largest.gather(1, torch.tensor(k, device=scores.device)[:, None] - 1)
    return scores.masked_fill(scores < threshold, -torch.inf)


def keep_top_p(scores: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Nucleus sampling (Holtzman et al., 2020): `scores` [b, V] with all but the smallest set of likeliest tokens whose
    probability reaches `top_p` [b, 1] set to -inf. The likeliest always stays."""
    ascending, order = scores.sort(dim=-1)
    unlikely = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - top_p
    unlikely[:, -1] = False
    return scores.masked_fill(unlikely.scatter(1, order, unlikely), -torch.inf)


def keep_min_p(scores: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """`scores` [b, V] with tokens less likely than `min_p` [b, 1] times the likeliest set to -inf."""
    probabilities = scores.softmax(dim=-1)
    return scores.masked_fill(probabilities < min_p * probabilities.amax(dim=-1, keepdim=True), -torch.inf)
