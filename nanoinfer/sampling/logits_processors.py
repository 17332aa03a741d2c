"""Logits processors: functions that change a request's logits before its token is chosen, greedily or by sampling.

The built-in ones run first, each on all rows of logits that need it at once. Then a request's own ones
(`SamplingParams.logits_processors`) run, row by row. To add a built-in rule, add a function to PROCESSORS and a field to
SamplingParams.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from nanoinfer.requests.req import Req, adjusts_logits
from nanoinfer.sampling.grammar.bitmask import forbid_other_tokens

Rows = Sequence[tuple[int, Req]]  # row numbers of the scores, each with the request that it belongs to


def process_logits(scores: torch.Tensor, reqs: Sequence[Req]) -> None:
    """Change `scores` [B, V] float32 in place, as each request's parameters say.

    RuntimeError naming the request whose processor returns a wrong shape, NaN or +infinity, or forbids every token.
    """
    rows = [(row, req) for row, req in enumerate(reqs) if adjusts_logits(req)]
    for processor in PROCESSORS if rows else ():
        processor(scores, rows)


def _flat(pairs: list[tuple[int, np.ndarray]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn several pairs (row, token ids) into two index tensors of equal length: rows and token ids."""
    rows = np.repeat([row for row, _ in pairs], [len(tokens) for _, tokens in pairs])
    tokens = np.concatenate([tokens for _, tokens in pairs])
    return torch.from_numpy(rows).to(device), torch.from_numpy(tokens.astype(np.int64)).to(device)


def add_logit_bias(scores: torch.Tensor, rows: Rows) -> None:
    """Add each request's `logit_bias`; -inf forbids a token."""
    biases = [(row, req.params.logit_bias) for row, req in rows if req.params.logit_bias]
    if biases:
        index = _flat([(row, np.array(list(bias))) for row, bias in biases], scores.device)
        values = np.concatenate([list(bias.values()) for _, bias in biases])
        scores[index] += torch.from_numpy(values).to(scores)


def penalise_repetition(scores: torch.Tensor, rows: Rows) -> None:
    """Penalise each token of prompt and output once, however often it occurs (Keskar et al., 2019, as in Hugging Face)."""
    penalised = [(row, req) for row, req in rows if req.params.repetition_penalty != 1.0]
    if penalised:
        index = _flat([(row, np.unique(req.token_ids[: req.num_tokens])) for row, req in penalised], scores.device)
        penalty = torch.ones(len(scores), device=scores.device)
        penalty[[row for row, _ in penalised]] = torch.tensor(
            [req.params.repetition_penalty for _, req in penalised], device=scores.device
        )
        seen, factor = scores[index], penalty[index[0]]
        scores[index] = torch.where(seen < 0, seen * factor, seen / factor)


def penalise_frequency_and_presence(scores: torch.Tensor, rows: Rows) -> None:
    """Subtract `frequency_penalty` times a token's count in the output, and `presence_penalty` once (OpenAI's rule)."""
    counted = []
    amounts = []
    for row, req in rows:
        params = req.params
        if params.frequency_penalty or params.presence_penalty:
            tokens, counts = np.unique(req.token_ids[req.prompt_len : req.num_tokens], return_counts=True)
            counted.append((row, tokens))
            amounts.append(params.frequency_penalty * counts + params.presence_penalty)
    if counted:
        scores[_flat(counted, scores.device)] -= torch.from_numpy(np.concatenate(amounts)).to(scores)


def forbid_stopping_early(scores: torch.Tensor, rows: Rows) -> None:
    """Forbid stop tokens until the output has `min_new_tokens` tokens."""
    early = [
        (row, np.array(sorted(req.stop_token_ids)))
        for row, req in rows
        if req.num_output_tokens < req.params.min_new_tokens
    ]
    if early:
        scores[_flat(early, scores.device)] = -torch.inf


def apply_processors_of_requests(scores: torch.Tensor, rows: Rows) -> None:
    """Call each request's `logits_processors` in turn: (token ids so far, scores [V]) → scores [V]."""
    for row, req in rows:
        for processor in req.params.logits_processors:
            try:
                result = processor(req.token_ids[: req.num_tokens].copy(), scores[row].clone())
            except Exception as error:
                error.add_note(f"raised by a logits processor of request {req.request_id}")
                raise
            scores[row] = _checked(result, scores[row], req)
        if req.params.logits_processors:
            forbid_stopping_early(scores, [(row, req)])  # a processor may have made a stop token likely again
            if not bool(scores[row].max().isfinite()):
                raise RuntimeError(
                    f"{_where(req)}: must allow a token that does not stop before min_new_tokens is reached"
                )


def _where(req: Req) -> str:
    return f"request {req.request_id}: logits_processors"


def _checked(result: Any, scores: torch.Tensor, req: Req) -> torch.Tensor:
    """A processor's result, with the dtype and device of `scores` [V]. RuntimeError if no token can be chosen from it."""
    if not isinstance(result, torch.Tensor):
        raise RuntimeError(f"{_where(req)}: got {type(result).__name__}, must be a tensor {list(scores.shape)}")
    if result.shape != scores.shape:
        raise RuntimeError(f"{_where(req)}: got {list(result.shape)}, must be {list(scores.shape)}")
    if not result.is_floating_point() or result.layout is not torch.strided or result.is_meta:
        kind = f"{result.dtype}, {result.layout}, on {result.device}"
        raise RuntimeError(f"{_where(req)}: got a tensor of {kind}: must be a dense floating-point tensor")
    result = result.detach().to(scores)
    if not bool(result.max().isfinite()):  # a NaN counts as larger than any number
        raise RuntimeError(f"{_where(req)}: must allow a token, and return no NaN or +infinity (in float32)")
    return result


def forbid_what_no_grammar_allows(scores: torch.Tensor, rows: Rows) -> None:
    """Forbid all tokens that the request's grammar does not allow next. It comes last, so nothing can allow them again."""
    forbid_other_tokens(
        scores,
        [
            (row, req.matcher, req.token_ids[req.num_tokens - req.drafts : req.num_tokens].tolist())
            for row, req in rows
            if req.matcher is not None
        ],
    )


# The order is that of Hugging Face's `generate`.
PROCESSORS = (
    add_logit_bias,
    penalise_repetition,
    penalise_frequency_and_presence,
    forbid_stopping_early,
    apply_processors_of_requests,
    forbid_what_no_grammar_allows,
)
